"""The extension module. Its functions are internal: the public functions of the package have the types."""

from typing import Any

version: str
has_cuda: bool

def __getattr__(name: str) -> Any: ...
