"""`nibble serve` in this process."""

from __future__ import annotations

import atexit
import os
import weakref
from difflib import get_close_matches
from typing import Any

from . import _core
from ._progress import Callbacks
from .errors import UsageError
from .jobs import as_json, serve_defaults

__all__ = ["Server", "serve"]


_running: "weakref.WeakSet[Server]" = weakref.WeakSet()


@atexit.register
def _stop_servers() -> None:
    """Servers end before the interpreter does."""
    for server in list(_running):
        server.close(0)


class Server:
    """A running server. A context stops it at its end; so does close()."""

    def __init__(self, native: Any) -> None:
        self._native = native
        _running.add(self)

    @property
    def url(self) -> str:
        """"http://127.0.0.1:PORT", or the path of the unix socket."""
        return self._native.url

    @property
    def port(self) -> int:
        return self._native.port

    @property
    def name(self) -> str:
        """The model's name in answers."""
        return self._native.name

    def close(self, seconds: float = 30) -> None:
        """Refuses new requests, waits for running ones at most so long, and ends."""
        self._native.stop(float(seconds))

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{self.url}\n{self._native.text}"


def serve(model: Any, port: int = 0, **options: Any) -> Server:
    """Starts an OpenAI- and Anthropic-compatible server on threads of this process. port 0: a free one.

    options: those of nibble.h's ServeOptions: host, names, api_keys, context, sequences, kv, compute, threads ...
    """
    for name in options:
        if name not in serve_defaults or name == "model":
            near = get_close_matches(name, serve_defaults, 1)
            raise UsageError(f"serve: there is no option '{name}'" + (f"; did you mean {near[0]}?" if near else ""))
    plain = {k: os.fspath(v) if isinstance(v, os.PathLike) else v for k, v in options.items()}
    with Callbacks(False) as callbacks:
        return Server(_core.serve(as_json("serve", {"model": os.fspath(model), "port": port, **plain}), callbacks["line"]))
