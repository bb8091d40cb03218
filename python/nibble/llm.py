"""A model that answers in this process."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from numbers import Integral
from operator import index
from typing import Any, TypeAlias, overload

from . import _core
from ._progress import Callbacks, logger, tqdm_class
from .errors import NibbleError, UsageError
from .jobs import as_json, serve_defaults
from .sampling import CompletionOutput, Logprob, RequestOutput, RequestOutputKind, SamplingParams

__all__ = ["LLM", "AsyncLLM", "Tokenizer"]

Prompt: TypeAlias = "str | Mapping[str, Any] | Sequence[int]"

# Words of vLLM's LLM that decide nothing here; the value is what they do here.
_without_effect = {
    "trust_remote_code": "no code of a model is run", "enforce_eager": "there are no graphs", "swap_space": "nothing is swapped",
    "disable_log_stats": "nothing is logged", "tokenizer_mode": "the tokenizer is nibble's", "enable_sleep_mode": "sleep() is always there",
    "max_lora_rank": "adapters are not supported", "max_num_batched_tokens": "the engine chooses the rows of a step", "disable_custom_all_reduce": None, "hf_overrides": None,
    "model_impl": "the model's code is nibble's", "distributed_executor_backend": "a model runs in this process",
}
_finish = {"cancelled": "abort", "deadline": "abort"}


def _engine_options(model: Any, words: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The options of the engine from keywords of vLLM's LLM, and the mode of log-probabilities."""
    options: dict[str, Any] = {"model": os.fspath(model)}
    renamed = {"max_model_len": "context", "max_num_seqs": "sequences"}
    kv = {"auto": "", "fp8": "fp8_cast", "fp8_e4m3": "fp8_cast", "bfloat16": "bf16"}
    mode = words.pop("logprobs_mode", "raw_logprobs")
    if mode not in ("raw_logprobs", "processed_logprobs"):
        raise UsageError(f"LLM: logprobs_mode '{mode}' is not supported; choices: raw_logprobs, processed_logprobs")
    for word, value in words.items():
        if word in renamed:
            options[renamed[word]] = 0 if value is None else value
        elif word == "gpu_memory_utilization":
            options["memory_share"] = float(value)
        elif word == "enable_prefix_caching":
            options["no_prefix_cache"] = value is False
        elif word == "kv_cache_dtype":
            options["kv"] = kv.get(value, value)
        elif word == "dtype":
            if value not in ("auto", "bfloat16", "float32"):
                raise UsageError(f"LLM: dtype '{value}' is not supported; choices: auto, bfloat16, float32")
            options["compute"] = "f32" if value == "float32" else "bf16"
        elif word in ("pipeline_parallel_size", "data_parallel_size"):
            if value != 1:
                raise UsageError(f"LLM: {word}={value} is not supported; a model runs on one device")
        elif word == "seed":
            continue
        elif word in ("tokenizer", "revision", "tokenizer_revision", "quantization", "enable_lora"):
            if value not in (None, False) and not (word == "tokenizer" and os.fspath(value) == options["model"]):
                raise UsageError(f"LLM: {word}={value!r} is not supported: the checkpoint's own is used")
        elif word in _without_effect:
            logger.info("LLM: %s has no effect%s", word, f": {_without_effect[word]}" if _without_effect[word] else "")
        elif word in serve_defaults and word not in ("model", "host", "port"):
            options[word] = value
        else:
            near = get_close_matches(word, [*renamed, *serve_defaults, "dtype", "kv_cache_dtype", "logprobs_mode"], 1)
            raise UsageError(f"LLM: there is no option '{word}'" + (f"; did you mean {near[0]}?" if near else ""))
    return options, mode


class Tokenizer:
    """The tokenizer of a running model, with the functions of transformers' that callers use."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return _encoded(self._model, text, add_special_tokens)

    def decode(self, token_ids: int | Sequence[int], skip_special_tokens: bool = False) -> str:
        return self._model.decode(_whole_ids([token_ids] if isinstance(token_ids, int) else token_ids), skip_special_tokens)

    def apply_chat_template(self, conversation: Sequence[Mapping[str, Any]], tokenize: bool = True,
                            add_generation_prompt: bool = False, **variables: Any) -> Any:
        text, ids = self._model.chat_prompt(json.dumps({
            "messages": list(conversation), "add_generation_prompt": add_generation_prompt, "chat_template_kwargs": variables}))
        return ids if tokenize else text

    @property
    def chat_template(self) -> str:
        return self._model.chat_template()

    @property
    def eos_token_id(self) -> int | None:
        info = self._model.info()
        return next(iter(info["end_tokens"]), None) if info["end_token"] is None else info["end_token"]

    @property
    def bos_token_id(self) -> int | None:
        return self._model.info()["begin_token"]

    def convert_tokens_to_ids(self, token: str) -> int | None:
        return self._model.id_of(token)

    def __len__(self) -> int:
        return self._model.info()["vocabulary"]


def _encoded(model: Any, text: Any, special: bool) -> list[int]:
    if not isinstance(text, str):
        raise UsageError(f"a text is a {type(text).__name__}; give a str")
    try:
        return model.encode(text, special)
    except TypeError:  # the text has no UTF-8
        raise UsageError("a text has half of a surrogate pair, which is no character") from None


def _whole_ids(ids: Any) -> list[int]:
    try:
        out = [index(i) for i in ids]
    except TypeError:
        raise UsageError(f"token ids are not whole numbers: {ids!r:.80}") from None
    if out and not (-1 << 31 <= min(out) and max(out) < 1 << 31):
        raise UsageError("a token id is not in [0, 2^31)")
    return out


def _detached(array: Any) -> Any:
    """A tensor of torch without its history, in memory of the CPU as it is."""
    return array.detach() if hasattr(array, "detach") else array


_open_models: "weakref.WeakSet[_Loaded]" = weakref.WeakSet()


@atexit.register
def _close_models() -> None:
    """Engines end before the interpreter does."""
    for model in list(_open_models):
        model.close()


class _Loaded:
    """Holds the code that LLM and AsyncLLM share."""

    def __init__(self, model: Any, **options: Any) -> None:
        settings, mode = _engine_options(model, options)
        self._sampled = mode == "processed_logprobs"
        with Callbacks(False) as callbacks:
            self._model = _core.open_model(as_json("LLM", settings), callbacks["line"])
        self._requests = 0
        self._hear: dict[int, Callable[[Any], object]] = {}  # receiver of the events of a request, by its number
        _open_models.add(self)

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return Tokenizer(self._model)

    @property
    def info(self) -> dict[str, Any]:
        """Formats, kernels, memory and context that were chosen."""
        return {**self._model.info(), "facts": json.loads(self._model.info()["facts"])}

    def get_default_sampling_params(self) -> SamplingParams:
        """Parameters with what generation_config.json gives."""
        return SamplingParams(**self._model.info()["sampling"])

    def stats(self) -> dict[str, int]:
        """Counters of the engine."""
        return self._model.stats()

    def _parameters(self, params: SamplingParams) -> Any:
        if not isinstance(params, SamplingParams):
            raise UsageError(f"sampling_params is a {type(params).__name__}; give SamplingParams, or a list with one for each prompt")
        return self._model.parameters(params._to_json(self._sampled))

    def _ids_of(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        if isinstance(prompt, str):
            return prompt, _encoded(self._model, prompt, True)
        if isinstance(prompt, Mapping):
            if "prompt_token_ids" in prompt:
                return prompt.get("prompt"), _whole_ids(prompt["prompt_token_ids"])
            if isinstance(prompt.get("prompt"), str):
                return self._ids_of(prompt["prompt"])
            raise UsageError(f"a prompt has the keys {sorted(prompt)}; give 'prompt' or 'prompt_token_ids'")
        if not isinstance(prompt, Iterable):
            raise UsageError(f"a prompt is a {type(prompt).__name__}; give a text, token ids, or a dictionary")
        return None, _whole_ids(prompt)

    def _chat_prompt(self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> tuple[str, list[int]]:
        body = {k: v for k, v in options.items() if v is not None}
        return self._model.chat_prompt(json.dumps({"messages": list(messages), **body}))

    def _scores(self, scored: list[Any], most: int, first_is_none: bool = False) -> list[Any]:
        out: list[Any] = []
        for place, (token, logprob, rank, top) in enumerate(scored):
            if first_is_none and place == 0:
                out.append(None)
                continue
            ranks = {t: i + 1 for i, (t, _) in enumerate(top)}
            one = {token: Logprob(logprob, rank or ranks.get(token), self._text_of(token))}
            for i, (t, p) in enumerate(top[:most]):
                if t not in one:
                    one[t] = Logprob(p, i + 1, self._text_of(t))
            out.append(one)
        return out

    def _text_of(self, token: int) -> str:
        return self._model.token_bytes(token).decode("utf-8", "replace")

    def _completion(self, answer: Any, params: SamplingParams) -> CompletionOutput:
        if answer.finish == "error":
            raise NibbleError(f"the answer ended with an error: {answer.error}")
        reason = _finish.get(answer.finish, answer.finish) or None
        stop: int | str | None = answer.stop or None
        if stop is None and answer.stop_token >= 0 and params.stop_token_ids and answer.stop_token in params.stop_token_ids:
            stop = answer.stop_token
        return CompletionOutput(
            index=answer.choice, text=answer.text if params.detokenize else "", token_ids=answer.token_ids,
            cumulative_logprob=answer.cumulative_logprob if params.logprobs is not None else None,
            logprobs=self._scores(answer.scores, params.logprobs) if params.logprobs is not None else None,
            finish_reason=reason, stop_reason=stop)

    def _prompt_scores(self, answer: Any, params: SamplingParams) -> Any:
        if params.prompt_logprobs is None:
            return None
        return self._scores(answer.prompt_scores, params.prompt_logprobs, True)

    def _pump(self, seconds: float) -> None:
        """Delivers events; waits for some at most so long."""
        for answer in self._model.poll(seconds):
            hear = self._hear.get(answer.request)
            if hear is not None:
                hear(answer)

    def _next_id(self) -> str:
        self._requests += 1
        return str(self._requests - 1)

    def update_weights(self, weights: Mapping[str, Any] | Iterable[tuple[str, Any]], *, recipe: str = "", version: str = "",
                       mode: str = "keep", partial: bool = True) -> None:
        """Replaces weights of the running model: a state_dict, or (name, array) pairs, named as in the checkpoint.

        Arrays in float32, bfloat16 or float16 are quantized as the model is (its nibble.json; `recipe` names other rules).
        All or nothing: after an error the old weights stay. Cached prefixes are forgotten. mode: what happens to answers that
        have begun: "keep" (they continue, recomputed with the new weights), "wait" (they end first) or "abort".
        partial=False: every weight must be given.
        """
        update = self._model.begin_update()
        for name, array in weights.items() if isinstance(weights, Mapping) else weights:
            update.set(name, _detached(array))
        self._model.commit(update, recipe, version, mode, partial)

    def load_weights(self, path: Any, *, recipe: str = "", version: str = "", mode: str = "keep") -> None:
        """The same from a checkpoint on disk. One that is quantized is used as it is."""
        self._model.load_weights(os.fspath(path), recipe, version, mode)

    @property
    def weight_version(self) -> str:
        """The version of the last update, "default" before the first."""
        return self._model.weight_version

    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Stops answering and frees memory: level 1 that of the cache, level 2 also that of the weights."""
        self._model.sleep(level, mode)

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Continues after sleep(). tags: "weights" reads them again, "kv_cache" answers again; None: both."""
        for tag in tags or ():
            if tag not in ("weights", "kv_cache"):
                raise UsageError(f"wake_up: there is no tag '{tag}'; choose weights, kv_cache")
        self._model.wake(tags is None or "weights" in tags, tags is None or "kv_cache" in tags)

    def is_sleeping(self) -> bool:
        return self._model.asleep

    def reset_prefix_cache(self) -> bool:
        """Forgets all cached prefixes. Answers that have begun continue."""
        self._model.forget_prefixes()
        return True

    def close(self) -> None:
        """Ends the engine and frees the memory of the model."""
        self._model.close()

    shutdown = close


class LLM(_Loaded):
    """A model for whole answers. `model` is a folder or .gguf file; the options are those of vLLM's LLM and of
    `nibble serve` (docs/python.md lists them).

        with nibble.LLM("SmolLM2-135M-NVFP4") as llm:
            print(llm.generate("The capital of France is", nibble.SamplingParams(temperature=0))[0].outputs[0].text)
    """

    def __init__(self, model: Any, **options: Any) -> None:
        super().__init__(model, **options)

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @overload
    def generate(self, prompts: str | Mapping[str, Any], sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
                 *, use_tqdm: bool | Callable[..., Any] = False, lora_request: None = None) -> list[RequestOutput]: ...
    @overload
    def generate(self, prompts: Sequence[str | Mapping[str, Any] | Sequence[int]],
                 sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
                 *, use_tqdm: bool | Callable[..., Any] = False, lora_request: None = None) -> list[RequestOutput]: ...
    @overload
    def generate(self, prompts: Sequence[int],
                 sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
                 *, use_tqdm: bool | Callable[..., Any] = False, lora_request: None = None) -> list[RequestOutput]: ...

    def generate(self, prompts: Any, sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
                 *, use_tqdm: bool | Callable[..., Any] = False, lora_request: None = None) -> list[RequestOutput]:
        """Answers of all prompts, in their order. A prompt: a text, {"prompt": text} or {"prompt_token_ids": ids}."""
        if lora_request is not None:
            raise UsageError("generate: lora_request is not supported")
        several: Any = prompts
        if not isinstance(prompts, Iterable):
            raise UsageError(f"generate: prompts is a {type(prompts).__name__}; give a text, token ids, or a list of prompts")
        many: list[Prompt] = [several] if isinstance(prompts, (str, Mapping)) else list(several)
        if many and all(isinstance(p, Integral) for p in many):
            many = [{"prompt_token_ids": many}]
        return self._run([self._ids_of(p) for p in many], sampling_params, use_tqdm)

    def chat(self, messages: Sequence[Any], sampling_params: SamplingParams | Sequence[SamplingParams] | None = None, *,
             use_tqdm: bool | Callable[..., Any] = False, chat_template: str | None = None, add_generation_prompt: bool = True,
             continue_final_message: bool = False, tools: list[dict[str, Any]] | None = None,
             chat_template_kwargs: dict[str, Any] | None = None) -> list[RequestOutput]:
        """Answers of one conversation (a list of messages) or of several."""
        several = list(messages) if messages and not isinstance(messages[0], Mapping) else [messages]
        options = dict(chat_template=chat_template, add_generation_prompt=add_generation_prompt,
                       continue_final_message=continue_final_message, tools=tools, chat_template_kwargs=chat_template_kwargs)
        prompts: list[tuple[str | None, list[int]]] = []
        for conversation in several:
            prompts.append(self._chat_prompt(conversation, options))
        return self._run(prompts, sampling_params, use_tqdm)

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[RequestOutput]:
        """The answer to one prompt as it is made. Closing the iterator cancels the request."""
        self._check_awake()
        story = _Story(self, prompt, sampling_params or SamplingParams(), self._next_id())
        arrived: deque[Any] = deque()
        story.begin(arrived.append)
        try:
            while not story.done:
                while not arrived:
                    self._pump(0.02)
                batch = [arrived.popleft() for _ in range(len(arrived))]
                output = story.add(batch)
                if output is not None:
                    yield output
        finally:
            story.end()

    def _check_awake(self) -> None:
        if self._model.asleep:
            raise UsageError("the model sleeps: call wake_up() first")

    def _run(self, prompts: list[tuple[str | None, list[int]]], params: Any, use_tqdm: Any) -> list[RequestOutput]:
        self._check_awake()
        each = list(params) if isinstance(params, (list, tuple)) else [params or SamplingParams()] * len(prompts)
        if len(each) != len(prompts):
            raise UsageError(f"generate: {len(prompts)} prompts and {len(each)} sampling parameters")
        native: dict[int, Any] = {}
        for p in each:
            if id(p) not in native:
                native[id(p)] = self._parameters(p)
        bar = None
        if use_tqdm:
            make = tqdm_class() if use_tqdm is True else use_tqdm
            if make is None:
                raise UsageError("use_tqdm=True needs tqdm: pip install tqdm")
            bar = make(total=len(prompts), desc="answers")
        try:
            progress = (lambda done, total: bar.update(done - bar.n)) if bar is not None else None
            answers = self._model.run([ids for _, ids in prompts], [native[id(p)] for p in each], 0, progress)
        finally:
            if bar is not None:
                bar.close()
        out = []
        for (text, ids), p, choices in zip(prompts, each, answers):
            last = next((c for c in choices if c.last), choices[-1])
            out.append(RequestOutput(
                request_id=self._next_id(), prompt=text, prompt_token_ids=ids, prompt_logprobs=self._prompt_scores(choices[0], p),
                outputs=[self._completion(c, p) for c in choices], finished=True, num_cached_tokens=last.cached_tokens,
                metrics=dict(zip(("queue_seconds", "prompt_seconds", "generate_seconds"), last.seconds))))
        return out


class _Story:
    """One streamed request: its events become outputs."""

    def __init__(self, owner: _Loaded, prompt: Prompt, params: SamplingParams, request_id: str) -> None:
        self._owner, self._params, self._id = owner, params, request_id
        self._text, self._ids = owner._ids_of(prompt)
        self._so_far: dict[int, CompletionOutput] = {}
        self._prompt_scores: Any = None
        self._handle: int | None = None
        self.done = False

    def begin(self, hear: Callable[[Any], object]) -> None:
        owner = self._owner
        self._handle = owner._model.submit(self._ids, owner._parameters(self._params), 0)
        owner._hear[self._handle] = hear

    def add(self, batch: list[Any]) -> RequestOutput | None:
        owner, params = self._owner, self._params
        new: dict[int, CompletionOutput] = {}
        for answer in batch:
            part = owner._completion(answer, params)
            if params.prompt_logprobs is not None and answer.prompt_scores:
                self._prompt_scores = owner._prompt_scores(answer, params)
            for parts in (new, self._so_far):
                parts[part.index] = _joined(parts.get(part.index), part)
            self.done = self.done or answer.last
        if params.output_kind is RequestOutputKind.FINAL_ONLY and not self.done:
            return None
        shown = new if params.output_kind is RequestOutputKind.DELTA else self._so_far
        return RequestOutput(self._id, self._text, self._ids, self._prompt_scores, [shown[i] for i in sorted(shown)], self.done,
                             batch[-1].cached_tokens if self.done else None)

    def end(self) -> None:
        if self._handle is None:
            return
        if not self.done and self._owner._model.is_open():
            self._owner._model.cancel(self._handle)
        self._owner._hear.pop(self._handle, None)


def _joined(a: CompletionOutput | None, b: CompletionOutput) -> CompletionOutput:
    """a and what follows it, in a new object."""
    if a is None:
        return CompletionOutput(b.index, b.text, list(b.token_ids), b.cumulative_logprob, b.logprobs and list(b.logprobs),
                                b.finish_reason, b.stop_reason)
    total = None if a.cumulative_logprob is None else a.cumulative_logprob + (b.cumulative_logprob or 0)
    return CompletionOutput(a.index, a.text + b.text, a.token_ids + b.token_ids, total,
                            None if a.logprobs is None else a.logprobs + (b.logprobs or []), b.finish_reason, b.stop_reason)


class AsyncLLM(_Loaded):
    """A model for asyncio. Streams of one event loop share it; leaving a stream cancels its request."""

    def __init__(self, model: Any, **options: Any) -> None:
        super().__init__(model, **options)
        self._loop: asyncio.AbstractEventLoop | None = None

    async def generate(self, prompt: Prompt, sampling_params: SamplingParams | None = None,
                       request_id: str | None = None) -> AsyncIterator[RequestOutput]:
        """Yields the answer as it is made: cumulative, or as sampling_params.output_kind says."""
        story = _Story(self, prompt, sampling_params or SamplingParams(), request_id or self._next_id())
        arrived: asyncio.Queue[Any] = asyncio.Queue()
        self._attach()
        try:
            story.begin(arrived.put_nowait)
            while not story.done:
                batch = [await arrived.get()]
                while not arrived.empty():
                    batch.append(arrived.get_nowait())
                output = story.add(batch)
                if output is not None:
                    yield output
        finally:
            story.end()
            self._detach()

    async def pause_generation(self, mode: str = "abort") -> None:
        """Stops between two steps; requests wait. mode: as update_weights()."""
        await asyncio.get_running_loop().run_in_executor(None, self._model.pause, mode)

    async def resume_generation(self) -> None:
        self._model.resume()

    async def is_paused(self) -> bool:
        return self._model.paused

    def _attach(self) -> None:
        """One reader of the loop serves all streams."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._loop is not None and self._hear:
            raise UsageError("AsyncLLM: streams of another event loop are unfinished")
        self._loop = loop
        loop.add_reader(self._model.fileno(), self._pump, 0.0)

    def _detach(self) -> None:
        if self._loop is not None and not self._hear:
            self._loop.remove_reader(self._model.fileno())
            self._loop = None

    def chat(self, messages: Sequence[Mapping[str, Any]], sampling_params: SamplingParams | None = None,
             request_id: str | None = None, **options: Any) -> AsyncIterator[RequestOutput]:
        """The same for a conversation. options: as LLM.chat()."""
        text, ids = self._chat_prompt(messages, options)
        return self.generate({"prompt_token_ids": ids, "prompt": text}, sampling_params, request_id)

    async def __aenter__(self) -> "AsyncLLM":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
