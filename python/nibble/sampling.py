"""Parameters and results of generation, with vLLM's names. Everything here is a dataclass: it can be copied, compared and
pickled."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from .errors import UsageError

__all__ = [
    "CompletionOutput", "Logprob", "RequestOutput", "RequestOutputKind", "SamplingParams", "StructuredOutputsParams",
]


class RequestOutputKind(Enum):
    """Selects the parts that a stream yields: the answer so far, its new text, or the whole answer once."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


@dataclass
class StructuredOutputsParams:
    """Constrains an answer. Exactly one field is given."""

    json: str | dict[str, Any] | None = None  # a JSON schema
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None  # GBNF or Lark
    json_object: bool | None = None

    def __post_init__(self) -> None:
        given = [f.name for f in fields(self) if getattr(self, f.name) not in (None, False)]
        if len(given) != 1:
            raise UsageError(f"StructuredOutputsParams: give exactly one of json, regex, choice, grammar, json_object, not {given}")

    def _to_json(self) -> dict[str, Any]:
        out = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) not in (None, False)}
        if isinstance(out.get("json"), str):
            try:
                out["json"] = json.loads(out["json"])
            except ValueError as e:
                raise UsageError(f"StructuredOutputsParams: json is no JSON: {e}") from None
        return out


def _plain_number(value: Any) -> Any:
    """A number of numpy or torch as one of Python."""
    if not hasattr(value, "item"):
        raise TypeError(f"a value of a wrong type: {value!r:.80}")
    return value.item()


@dataclass
class SamplingParams:
    """How tokens are chosen. Names and defaults are vLLM's, but a missing seed is 0: the same call gives the same text.

    Prompt i of a call draws the numbers of (seed, i).
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    structured_outputs: StructuredOutputsParams | None = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE

    def __post_init__(self) -> None:
        if self.seed == -1:
            self.seed = None
        if isinstance(self.stop, str):
            self.stop = [self.stop]
        if self.stop and not self.detokenize:
            raise UsageError("SamplingParams: stop needs detokenize=True")
        for f in ("presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "min_p", "top_k", "n", "min_tokens"):
            value = getattr(self, f)
            if not isinstance(value, (int, float)) and not hasattr(value, "__index__") and not hasattr(value, "__float__"):
                raise UsageError(f"SamplingParams: {f} is not a number: {value!r}")
        if self.max_tokens is not None and not hasattr(self.max_tokens, "__index__"):
            raise UsageError(f"SamplingParams: max_tokens is not a whole number: {self.max_tokens!r}")
        if self.stop is not None and not (isinstance(self.stop, (list, tuple)) and all(isinstance(s, str) for s in self.stop)):
            raise UsageError(f"SamplingParams: stop is neither a text nor a list of texts: {self.stop!r}")
        checks = [
            (self.temperature >= 0 and self.temperature <= 100, "temperature", "is not in [0, 100]"),
            (0 < self.top_p <= 1, "top_p", "is not in (0, 1]"),
            (self.top_k >= -1, "top_k", "is below -1"),
            (0 <= self.min_p <= 1, "min_p", "is not in [0, 1]"),
            (self.n >= 1, "n", "is below 1"),
            (self.max_tokens is None or self.max_tokens >= 1, "max_tokens", "is below 1"),
            (-2 <= self.presence_penalty <= 2, "presence_penalty", "is not in [-2, 2]"),
            (-2 <= self.frequency_penalty <= 2, "frequency_penalty", "is not in [-2, 2]"),
            (self.repetition_penalty > 0, "repetition_penalty", "is not above 0"),
        ]
        for valid, name, why in checks:
            if not valid:
                raise UsageError(f"SamplingParams: {name} {getattr(self, name)} {why}")
        if any(not s for s in self.stop or []):
            raise UsageError("SamplingParams: a stop string is empty")

    def _to_json(self, sampled_logprobs: bool) -> str:
        out: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            # No space is put between special tokens, whatever the field says, like in vLLM with fast tokenizers.
            if f.name in ("detokenize", "output_kind", "spaces_between_special_tokens") or value is None:
                continue
            if f.name == "structured_outputs":
                value = value._to_json()
            if f.name == "logit_bias":
                value = {str(k): v for k, v in value.items()}
            out[f.name] = value
        if self.max_tokens is None:
            out["max_tokens"] = 1 << 40  # until the context ends
        if sampled_logprobs:
            out["sampled_logprobs"] = True
        try:
            return json.dumps(out, default=_plain_number, allow_nan=False)
        except (TypeError, ValueError) as e:
            raise UsageError(f"SamplingParams: {e}") from None


@dataclass
class Logprob:
    """The log-probability of a token, its place among all tokens (1: the likeliest; None: not counted), and its text."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass
class CompletionOutput:
    """One choice. finish_reason: stop, length, abort or None; stop_reason: a stop string, a stop token or None."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass
class RequestOutput:
    """A request with its choices."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = False
    num_cached_tokens: int | None = None
    metrics: dict[str, float] | None = None  # queue_seconds, prompt_seconds, generate_seconds
