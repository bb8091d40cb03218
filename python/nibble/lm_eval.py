"""A model of nibble for lm-evaluation-harness: `python -m nibble.lm_eval --model nibble --model_args model=FOLDER --tasks ...`,
or simple_evaluate(model=NibbleLM(FOLDER))."""

from __future__ import annotations

import sys
from typing import Any

import lm_eval.models  # registers the models of lm-eval, which is otherwise left out once ours is there
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model

from ._info import build_info
from ._progress import logger
from .llm import LLM
from .sampling import SamplingParams

__all__ = ["NibbleLM"]


@register_model("nibble")
class NibbleLM(TemplateLM):
    """Log-likelihoods and answers of a checkpoint. options: those of nibble.LLM."""

    def __init__(self, model: str, batch_size: Any = None, device: str | None = None, max_gen_toks: int = 256, **options: Any) -> None:
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
        self.max_length: int = self.llm.info["context"]

    @property
    def eot_token_id(self) -> int:
        token = self._tokenizer.eos_token_id
        return 0 if token is None else token

    @property
    def prefix_token_id(self) -> int:
        begin = self._tokenizer.bos_token_id
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
        return self._tokenizer.encode(string, bool(add_special_tokens))

    def _loglikelihood_tokens(self, requests: Any, disable_tqdm: bool = False, **_: Any) -> list[tuple[float, bool]]:
        params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1, detokenize=False)
        prompts = [{"prompt_token_ids": (context + continuation)[-(self.max_length - 1):]} for _, context, continuation in requests]
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
        from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

        out = []
        for request in requests:
            tokens = self.tok_encode(request.args[0])
            windows = list(map(make_disjoint_window, get_rolling_token_windows(
                token_list=tokens, prefix_token=self.prefix_token_id, max_seq_len=self.max_length - 1, context_len=1)))
            scores = self._loglikelihood_tokens([(None, context, continuation) for context, continuation in windows])
            out.append(sum(score for score, _ in scores))
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, out[-1])
        return out

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
        prompts, params = [], []
        for request in requests:
            text, how = request.args
            how = dict(how)
            stop = how.pop("until", None) or []
            most = int(how.pop("max_gen_toks", self.max_gen_toks))
            sample = how.pop("do_sample", False)
            temperature = float(how.pop("temperature", 1.0 if sample else 0.0)) if sample else 0.0
            names = {"top_p", "top_k", "min_p", "repetition_penalty", "seed"}
            ids = self.tok_encode(text, True)[-(self.max_length - most):]
            prompts.append({"prompt_token_ids": ids})
            params.append(SamplingParams(temperature=temperature, max_tokens=most, stop=stop,
                                         **{k: v for k, v in how.items() if k in names}))
        answers = [a.outputs[0].text for a in self.llm.generate(prompts, params)]
        for request, answer in zip(requests, answers):
            self.cache_hook.add_partial("generate_until", request.args, answer)
        return answers


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    sys.exit(cli_evaluate())
