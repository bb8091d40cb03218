"""Progress, log lines and cancelling of jobs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

logger = logging.getLogger("nibble")
logger.addHandler(logging.NullHandler())


@dataclass
class Progress:
    """Progress of a job. `unit` of done and total: "bytes", "items" ..."""

    phase: str
    item: str
    done: int
    total: int
    unit: str


ProgressLike: TypeAlias = "bool | None | Callable[[Progress], object] | Any"


def _wants_bar() -> bool:
    shell = sys.modules.get("IPython")
    return sys.stderr.isatty() or (shell is not None and getattr(shell, "get_ipython", lambda: None)() is not None)


class _Bar:
    """A bar of tqdm for each phase."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make
        self._bar: Any = None
        self._phase: str | None = None

    def __call__(self, p: Progress) -> None:
        if self._bar is None or p.phase != self._phase:
            self.close()
            scaled = p.unit == "bytes"
            self._bar = self._make(total=p.total, desc=p.phase, unit="B" if scaled else p.unit, unit_scale=scaled)
            self._phase = p.phase
        self._bar.total = p.total
        self._bar.update(p.done - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def tqdm_class() -> Any:
    """tqdm.auto.tqdm, or None where tqdm is not installed."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    return tqdm


class Callbacks:
    """The callbacks of one job: a context that closes its bar.

    progress: a function of a Progress; a class or partial of tqdm; True: a bar; False: none; None: a bar where tqdm is
    installed and a terminal or notebook is there.
    """

    def __init__(self, progress: ProgressLike = None, cancel: Any = None, on_event: Callable[[str], object] | None = None,
                 judge: Callable[[Any], Any] | None = None) -> None:
        self._bar: _Bar | None = None
        report: Callable[[Progress], object] | None = None
        if progress is None or progress is True:
            make = tqdm_class() if progress or _wants_bar() else None
            if progress and make is None:
                from .errors import UsageError

                raise UsageError("progress=True needs tqdm: pip install tqdm")
            if make is not None:
                report = self._bar = _Bar(make)
        elif progress is not False:
            function = getattr(progress, "func", progress)  # a functools.partial holds its function
            if isinstance(function, type) and hasattr(function, "update"):
                report = self._bar = _Bar(progress)
            else:
                report = progress
        self.native: dict[str, Any] = {"line": self._line}
        if report is not None:
            call = report
            self.native["progress"] = lambda phase, item, done, total, unit: call(
                Progress(phase, item, done, total, unit or "bytes"))
        if cancel is not None:
            self.native["cancel"] = cancel
        if on_event is not None:
            self.native["event"] = on_event
        if judge is not None:
            self.native["judge"] = judge

    @staticmethod
    def _line(kind: str, text: str) -> None:
        logger.log(logging.WARNING if kind == "warning" else logging.INFO, "%s", text)

    def __enter__(self) -> dict[str, Any]:
        return self.native

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
        self.native = {}
