"""Facts about this installation."""

from __future__ import annotations

from typing import Any

from . import _core


def threads() -> int:
    """Threads of tensor functions."""
    return _core.threads()


def set_threads(threads: int) -> None:
    """Sets the threads of later calls of tensor functions. 0: one per core of this process' affinity mask."""
    if threads < 0:
        from .errors import UsageError

        raise UsageError(f"set_threads: {threads} is negative; 0 means one thread per core")
    _core.set_threads(threads)


def build_info() -> dict[str, Any]:
    """Collects facts about this installation for bug reports."""
    import platform
    from importlib.resources import files

    program = files(__package__).joinpath("bin", "nibble")
    return {
        "version": _core.version,
        "python": platform.python_version(),
        "cuda": "compiled in" if _core.has_cuda else "not compiled in: this build computes on the CPU only",
        "cpu_kernels": list(_core.kernel_names()),
        "threads": _core.threads(),
        "program": str(program) if program.is_file() else None,
        "search_solver": _core.solver_status(),
    }
