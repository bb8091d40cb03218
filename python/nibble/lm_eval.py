"""A model of nibble for lm-evaluation-harness: `python -m nibble.lm_eval --model nibble --model_args model=FOLDER --tasks ...`,
or simple_evaluate(model=NibbleLM(FOLDER))."""

from __future__ import annotations

import sys
from typing import Any

import lm_eval.models  # registers the models of lm-eval, which is otherwise left out once ours is there
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import handle_stop_sequences, has_bos_prefix, normalize_gen_kwargs, postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from ._info import build_info
from ._progress import logger
from .errors import UsageError
from .llm import LLM
from .sampling import SamplingParams

__all__ = ["NibbleLM"]


@register_model("nibble")
class NibbleLM(TemplateLM):
    """Log-likelihoods and answers of a checkpoint. options: those of nibble.LLM.

    Texts, windows and stop strings are those of the harness's model "hf": special tokens as the tokenizer adds them, or as
    add_bos_token says; prefix_token_id before a text without context, by default BOS or else EOS; at most max_length tokens,
    by default the context. A window has one token that it predicts more than it reads, and the engine adds one, so windows
    end two tokens before the context does.
    """

    def __init__(self, model: str, batch_size: Any = None, device: str | None = None, max_gen_toks: int = 256,
                 max_length: int | None = None, add_bos_token: bool | None = None, prefix_token_id: int | None = None,
                 **options: Any) -> None:
        super().__init__()
        # The harness names cuda:0 by default, also on machines without a GPU.
        if device not in (None, "cpu") and build_info()["cuda"].startswith("not compiled in"):
            logger.warning("this build of nibble has no CUDA: device %s is not used", device)
        elif device not in (None, "cpu"):
            options["device"] = device
        options.pop("max_batch_size", None)
        self.llm = LLM(model, **options)
        self._tokenizer = self.llm.get_tokenizer()
        self._model = model
        self.max_gen_toks = max_gen_toks
        context: int = self.llm.info["context"]
        self.max_length: int = min(max_length or context, context)
        self._window = min(self.max_length, context - 2)
        self._add_bos, self._prefix = add_bos_token, prefix_token_id

    @property
    def eot_token_id(self) -> int:
        token = self._tokenizer.eos_token_id
        return 0 if token is None else token

    @property
    def prefix_token_id(self) -> int:
        begin = self._tokenizer.bos_token_id if self._prefix is None else self._prefix
        return self.eot_token_id if begin is None else begin

    @property
    def tokenizer_name(self) -> str:
        return str(self._model).replace("/", "__")

    def chat_template(self, chat_template: Any = False) -> str:
        return self._tokenizer.chat_template

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        ids = self._tokenizer.apply_chat_template(chat_history, add_generation_prompt=add_generation_prompt)
        return self._tokenizer.decode(ids)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        if add_special_tokens is None:
            # A chat template may have written the token that begins a text.
            written = has_bos_prefix(string, self._tokenizer.decode(self.prefix_token_id))
            add_special_tokens = not written and self._add_bos is not False
        return self._tokenizer.encode(string, add_special_tokens)

    def _loglikelihood_tokens(self, requests: Any, disable_tqdm: bool = False, **_: Any) -> list[tuple[float, bool]]:
        params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1, detokenize=False)
        prompts = [{"prompt_token_ids": (context + continuation)[-(self._window + 1):]} for _, context, continuation in requests]
        out = []
        for request, answer in zip(requests, self.llm.generate(prompts, params)):
            wanted = answer.prompt_token_ids[-len(request[2]):]
            scores: Any = (answer.prompt_logprobs or [])[-len(wanted):]
            total = sum(s[t].logprob for s, t in zip(scores, wanted))
            greedy = all(max(s, key=lambda i: (s[i].logprob, -i)) == t for s, t in zip(scores, wanted))
            out.append((total, greedy))
            if request[0] is not None:  # not a window of loglikelihood_rolling()
                self.cache_hook.add_partial("loglikelihood", request[0], out[-1])
        return out

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
        out = []
        for request in requests:
            tokens = self.tok_encode(request.args[0])
            windows = list(map(make_disjoint_window, get_rolling_token_windows(
                token_list=tokens, prefix_token=self.prefix_token_id, max_seq_len=self._window, context_len=1)))
            scores = self._loglikelihood_tokens([(None, context, continuation) for context, continuation in windows])
            out.append(sum(score for score, _ in scores))
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, out[-1])
        return out

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
        prompts, params = [], []
        end = self._tokenizer.decode(self.eot_token_id)
        for request in requests:
            text, how = request.args
            how = normalize_gen_kwargs(how, self.max_gen_toks)
            stop = handle_stop_sequences(how.pop("until", None), end)
            most = how.pop("max_gen_toks")
            if most >= self.max_length:
                raise UsageError(f"generate_until: max_gen_toks {most} leaves no room in a context of {self.max_length}")
            names = {"top_p", "top_k", "min_p", "repetition_penalty", "seed"}
            prompts.append({"prompt_token_ids": self.tok_encode(text)[-(self.max_length - most):]})
            params.append(SamplingParams(temperature=how.get("temperature", 0.0), max_tokens=most, stop=[s for s in stop if s],
                                         **{k: v for k, v in how.items() if k in names}))
        answers = [postprocess_generated_text(a.outputs[0].text, p.stop, None) for a, p in zip(self.llm.generate(prompts, params), params)]
        for request, answer in zip(requests, answers):
            self.cache_hook.add_partial("generate_until", request.args, answer)
        return answers


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    sys.exit(cli_evaluate())
