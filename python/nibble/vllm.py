"""Names of vLLM: `from nibble.vllm import LLM, SamplingParams` in place of `from vllm import LLM, SamplingParams`.

For programs that cannot be changed, alias() makes `import vllm` import this module.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.metadata
import importlib.util
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any, TypedDict

from . import llm as _llm
from .errors import UsageError
from .sampling import (CompletionOutput, Logprob, RequestOutput, RequestOutputKind, SamplingParams, StructuredOutputsParams)

__all__ = [
    "LLM", "AsyncEngineArgs", "AsyncLLM", "AsyncLLMEngine", "EngineArgs", "CompletionOutput", "Logprob", "RequestOutput",
    "RequestOutputKind", "SamplingParams", "StructuredOutputsParams", "TextPrompt", "TokensPrompt", "alias",
]

__version__ = "0.33.0"  # the version of vLLM whose names these are


class TextPrompt(TypedDict):
    prompt: str


class TokensPrompt(TypedDict):
    prompt_token_ids: list[int]


def _truth(word: str) -> bool:
    if word.lower() not in ("true", "false", "1", "0"):
        raise argparse.ArgumentTypeError(f"'{word}' is neither true nor false")
    return word.lower() in ("true", "1")


class EngineArgs:
    """The options of an engine, as attributes."""

    def __init__(self, model: Any, **options: Any) -> None:
        self.model = model
        self.__dict__.update(options)

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Adds the options of LLM. One that the command line leaves out is not in the result, so LLM's own default holds."""
        group = parser.add_argument_group("Options of the engine")
        for name, kind in (("model", str), ("tokenizer", str), ("dtype", str), ("quantization", str), ("kv-cache-dtype", str),
                           ("logprobs-mode", str), ("seed", int), ("max-model-len", int), ("max-num-seqs", int),
                           ("max-num-batched-tokens", int), ("tensor-parallel-size", int), ("gpu-memory-utilization", float)):
            group.add_argument("--" + name, type=kind, default=argparse.SUPPRESS)
        for name in ("enable-prefix-caching", "enforce-eager", "trust-remote-code"):
            group.add_argument("--" + name, nargs="?", const=True, type=_truth, default=argparse.SUPPRESS)
            group.add_argument("--no-" + name, dest=name.replace("-", "_"), action="store_false", default=argparse.SUPPRESS)
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> "EngineArgs":
        """The options of the engine among those of a program."""
        parser = argparse.ArgumentParser()
        names = {action.dest for action in cls.add_cli_args(parser)._actions}
        return cls(**{name: value for name, value in vars(args).items() if name in names})


class FlexibleArgumentParser(argparse.ArgumentParser):
    """vLLM's parser: names of options may have underscores in place of hyphens."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # type: ignore[override]
        words = list(sys.argv[1:] if args is None else args)
        for i, word in enumerate(words):
            if word.startswith("--"):
                name, equals, value = word.partition("=")
                words[i] = name.replace("_", "-") + equals + value
        return super().parse_known_args(words, namespace)


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


class LoRARequest:
    """Adapters are not supported; the name is there for programs that import it."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise UsageError("LoRARequest: adapters are not supported")


def _tokenizer_of(name: Any, *_: Any, tokenizer_mode: str = "auto", **options: Any) -> Any:
    """vLLM's get_tokenizer: a tokenizer of transformers."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(name, **{k: v for k, v in options.items() if v is not None})


def _address() -> str:
    """vLLM's get_ip: the address of this machine."""
    return socket.gethostbyname(socket.gethostname())


def _no_transfer(*_: Any, **__: Any) -> Any:
    """vLLM's transfer of weights between GPUs."""
    raise UsageError("weights are not transferred through NCCL; LLM.update_weights() or the routes of nibble serve take them")


def _chat_template_of(tokenizer: Any, chat_template: str | None = None, *_: Any, **__: Any) -> str | None:
    """vLLM's resolve_chat_template: the given one, else the tokenizer's."""
    return chat_template if chat_template is not None else getattr(tokenizer, "chat_template", None)


class _Distribution(importlib.metadata.Distribution):
    """Holds the metadata that importlib.metadata.version("vllm") reads."""

    def read_text(self, filename: str) -> str | None:
        return f"Metadata-Version: 2.1\nName: vllm\nVersion: {__version__}\n" if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        raise FileNotFoundError(path)


class _Finder(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> None:
        return None

    @classmethod
    def find_distributions(cls, context: Any = None) -> Any:
        return iter([_Distribution()] if context is not None and context.name == "vllm" else [])


# Submodules of vLLM and the names that programs import from them.
_submodules: Mapping[str, Mapping[str, Any]] = {
    "sampling_params": {n: globals()[n] for n in ("RequestOutputKind", "SamplingParams", "StructuredOutputsParams")},
    "outputs": {n: globals()[n] for n in ("CompletionOutput", "RequestOutput")},
    "inputs": {"TextPrompt": TextPrompt, "TokensPrompt": TokensPrompt},
    "logprobs": {"Logprob": Logprob},
    "engine": {}, "engine.arg_utils": {"AsyncEngineArgs": AsyncEngineArgs, "EngineArgs": EngineArgs},
    "engine.async_llm_engine": {"AsyncLLMEngine": AsyncLLMEngine},
    "v1": {}, "v1.engine": {}, "v1.engine.async_llm": {"AsyncLLM": AsyncLLM},
    "lora": {}, "lora.request": {"LoRARequest": LoRARequest},
    "tokenizers": {"get_tokenizer": _tokenizer_of},
    "renderers": {}, "renderers.hf": {"resolve_chat_template": _chat_template_of},
    "distributed": {"cleanup_dist_env_and_memory": lambda *_, **__: None},
    "distributed.weight_transfer": {}, "distributed.weight_transfer.nccl_common": {"trainer_init": _no_transfer},
    "distributed.weight_transfer.packed_tensor": {"packed_nccl_broadcast_producer": _no_transfer},
    "utils": {"FlexibleArgumentParser": FlexibleArgumentParser}, "utils.network_utils": {"get_ip": _address},
    "utils.argparse_utils": {"FlexibleArgumentParser": FlexibleArgumentParser},
}


def alias() -> None:
    """Lets `import vllm` import this module in this process, with the submodules in use. Error: vLLM is installed."""
    known = sys.modules.get("vllm")
    if known is not None and known.__dict__.get("alias") is alias:
        return
    if known is not None or importlib.util.find_spec("vllm") is not None:
        raise UsageError("alias: vLLM is installed here; `import vllm` is its own")

    def module(name: str, names: Mapping[str, Any]) -> None:
        made = ModuleType(name)
        made.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        made.__path__ = []
        made.__dict__.update(names)
        sys.modules[name] = made
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, made)

    module("vllm", {n: globals()[n] for n in (*__all__, "__version__")})
    for name, names in _submodules.items():
        module("vllm." + name, names)
    sys.meta_path.append(_Finder)  # type: ignore[arg-type]
