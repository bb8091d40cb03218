"""Types of signatures. Nothing here is checked when the program runs."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any, Protocol, TypeAlias, TypeVar


class Array(Protocol):
    """An array with DLPack: of torch, numpy, JAX and others."""

    def __dlpack__(self) -> Any: ...


class Buffered(Protocol):
    """An object with the buffer protocol, as bytearray and memoryview."""

    def __buffer__(self, flags: int, /) -> memoryview: ...


T = TypeVar("T", bound="Array | Buffered")
Path: TypeAlias = "str | PathLike[str]"
Paths: TypeAlias = "Path | Sequence[Path]"
