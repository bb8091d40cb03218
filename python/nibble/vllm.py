"""Names of vLLM: `from nibble.vllm import LLM, SamplingParams` in place of `from vllm import LLM, SamplingParams`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from . import llm as _llm
from .sampling import (CompletionOutput, Logprob, RequestOutput, RequestOutputKind, SamplingParams, StructuredOutputsParams)

__all__ = [
    "LLM", "AsyncEngineArgs", "AsyncLLM", "AsyncLLMEngine", "EngineArgs", "CompletionOutput", "Logprob", "RequestOutput", "RequestOutputKind", "SamplingParams",
    "StructuredOutputsParams",
]


class EngineArgs:
    """The options of an engine, as attributes."""

    def __init__(self, model: Any, **options: Any) -> None:
        self.model = model
        self.__dict__.update(options)


AsyncEngineArgs = EngineArgs


class AsyncLLM(_llm.AsyncLLM):
    """nibble.AsyncLLM with vLLM's constructor."""

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> "AsyncLLM":
        return cls(**vars(engine_args))


AsyncLLMEngine = AsyncLLM


class LLM(_llm.LLM):
    """nibble.LLM with the inner names of vLLM's that trl and lm-evaluation-harness use: `llm_engine.model_config` and
    `llm_engine...model.load_weights`, which gathers weights until they are needed."""

    _gathered: Any = None

    @property
    def llm_engine(self) -> Any:
        model = SimpleNamespace(load_weights=self._gather)
        executor = SimpleNamespace(driver_worker=SimpleNamespace(model_runner=SimpleNamespace(model=model)))
        return SimpleNamespace(model_executor=executor, get_tokenizer=self.get_tokenizer,
                               model_config=SimpleNamespace(max_model_len=self.info["facts"]["context"]))

    def _gather(self, weights: Iterable[tuple[str, Any]]) -> set[str]:
        if self._gathered is None:
            self._gathered = self._model.begin_update()
        names = set()
        for name, array in weights:
            self._gathered.set(name, _llm._detached(array))
            names.add(name)
        return names

    def _use_gathered(self) -> None:
        if self._gathered is not None:
            gathered, self._gathered = self._gathered, None
            self._model.commit(gathered, "", "", "abort", True)

    def reset_prefix_cache(self) -> bool:
        self._use_gathered()
        return super().reset_prefix_cache()

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        if tags is None or "kv_cache" in tags:
            self._use_gathered()
        super().wake_up(tags)

    def _check_awake(self) -> None:
        super()._check_awake()
        self._use_gathered()
