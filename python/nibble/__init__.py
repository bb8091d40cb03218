"""nibble: real FP4 and FP8 for large language models. docs/python.md is the guide.

    q = nibble.quantize(weight, "nvfp4")     # codes, block scales and tensor scale, in the caller's kind of array
    y = nibble.matmul(x, q)                  # a real product of quantized weights

`import nibble` loads neither numpy nor torch and changes nothing in the process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _core
from .errors import *  # noqa: F403
from .tensors import *  # noqa: F403

if TYPE_CHECKING:  # `as` makes the names public for type checkers
    from ._info import build_info as build_info, set_threads as set_threads, threads as threads
    from ._progress import Progress as Progress
    from .checkpoint import Checkpoint as Checkpoint, TensorInfo as TensorInfo, open as open
    from .jobs import (
        calibrate as calibrate, convert as convert, evaluate as evaluate, import_gguf as import_gguf, inspect as inspect,
        quantize_checkpoint as quantize_checkpoint, recipes as recipes, reinforce as reinforce, search as search, train as train,
        verify as verify)
    from .llm import LLM as LLM, AsyncLLM as AsyncLLM, Tokenizer as Tokenizer
    from .sampling import (
        CompletionOutput as CompletionOutput, Logprob as Logprob, RequestOutput as RequestOutput,
        RequestOutputKind as RequestOutputKind, SamplingParams as SamplingParams, StructuredOutputsParams as StructuredOutputsParams)
    from .server import Server as Server, serve as serve

__version__: str = _core.version

# Names that are imported when they are used first.
_later = {
    "build_info": "_info", "set_threads": "_info", "threads": "_info", "Progress": "_progress",
    **dict.fromkeys(("calibrate", "convert", "evaluate", "import_gguf", "inspect", "quantize_checkpoint", "recipes",
                     "reinforce", "search", "train", "verify"), "jobs"),
    **dict.fromkeys(("LLM", "AsyncLLM", "Tokenizer"), "llm"), **dict.fromkeys(("Server", "serve"), "server"),
    **dict.fromkeys(("Checkpoint", "TensorInfo", "open"), "checkpoint"),
    **dict.fromkeys(("CompletionOutput", "Logprob", "RequestOutput", "RequestOutputKind", "SamplingParams",
                     "StructuredOutputsParams"), "sampling"),
}


def __getattr__(name: str) -> Any:
    if name in _later:
        from importlib import import_module

        value = getattr(import_module("." + _later[name], __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'nibble' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_later))
