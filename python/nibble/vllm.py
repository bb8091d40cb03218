"""Names of vLLM: `from nibble.vllm import LLM, SamplingParams` in place of `from vllm import LLM, SamplingParams`."""

from .llm import LLM, AsyncLLM
from .sampling import (CompletionOutput, Logprob, RequestOutput, RequestOutputKind, SamplingParams, StructuredOutputsParams)

AsyncLLMEngine = AsyncLLM

__all__ = [
    "LLM", "AsyncLLM", "AsyncLLMEngine", "CompletionOutput", "Logprob", "RequestOutput", "RequestOutputKind", "SamplingParams",
    "StructuredOutputsParams",
]
