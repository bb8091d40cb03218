"""Writes tests/data/eval: expected statistics of token scores (numpy, double), and answers that the regular
expressions of lm-evaluation-harness (gsm8k.yaml) find in hand-written and random texts. `eval_tables.py
tests/data/eval`.
"""
import json
import pathlib
import random
import re
import sys

import numpy as np

out = pathlib.Path(sys.argv[1])
rng = np.random.default_rng(3)
vocab, tokens = 11, 6
a = rng.standard_normal((tokens, vocab)) * 2
b = a + rng.standard_normal((tokens, vocab)) * 0.3
target = rng.integers(0, vocab, tokens)


def log_softmax(x):
    return (x - np.log(np.exp(x).sum(1, keepdims=True))).astype(np.float32)


def error(x):
    return x.std(ddof=1) / np.sqrt(len(x))


p, q = log_softmax(a).astype(float), log_softmax(b).astype(float)
kl = (np.exp(p) * (p - q)).sum(1)
nll, reference = -q[np.arange(tokens), target], -p[np.arange(tokens), target]
ppl, reference_ppl = np.exp(nll.mean()), np.exp(reference.mean())
cov = np.cov(nll, reference) / tokens
delta = np.exp(-nll) - np.exp(-reference)
rms = np.sqrt((delta**2).mean())
same = (p.argmax(1) == q.argmax(1)).astype(float)
(out / "token_scores.json").write_text(json.dumps({
    "reference": p.tolist(), "model": q.tolist(), "target": target.tolist(), "kl": kl.tolist(),
    "perplexity": [ppl, ppl * error(nll)], "reference_perplexity": [reference_ppl, reference_ppl * error(reference)],
    "kl_mean": [kl.mean(), error(kl)], "kl_median": np.quantile(kl, 0.5), "kl_99": np.quantile(kl, 0.99), "kl_max": kl.max(),
    "same_top": [same.mean(), error(same)], "log_ratio": [(nll - reference).mean(), error(nll - reference)],
    "delta": [ppl - reference_ppl, np.sqrt(ppl**2 * cov[0, 0] + reference_ppl**2 * cov[1, 1] - 2 * ppl * reference_ppl * cov[0, 1])],
    "rms": [rms, error(delta**2) / (2 * rms)]}) + "\n")


def normalized(text):  # regexes_to_ignore and ignore_case of exact_match
    for pattern in (",", r"\$", r"(?s).*#### ", r"\.$"):
        text = re.sub(pattern, "", text)
    return text.lower()


def row(text):
    strict = re.findall(r"#### (\-?[0-9\.\,]+)", text)
    flexible = re.findall(r"(-?[$0-9.,]{2,})|(-?[0-9]+)", text)
    return {"text": text, "strict": strict[0] if strict else None, "flexible": [m for m in flexible[-1] if m][0] if flexible else None,
            "normalized": normalized(text)}


texts = ["#### 72", "so 1,234 dollars\n#### 1,234", "#### -5.", "The answer is $18.", "####72", "#### x #### 3", "no number", "", "-", "--3", "a-7b", "7", "$", "$$",
         "1.5 and .5.", "x,y", "#### ", "#### $5", "10 - 4 = 6", "10 -4", "3.14.15", "#### 12 apples\n#### 13", "A. B.", "50%.", "-$5", "é9", "9\n", "#### 7.\n"]
r = random.Random(4)
texts += ["".join(r.choice("##### -$,.0123456789ab\n") for _ in range(r.randint(1, 14))) for _ in range(300)]
with open(out / "gsm8k_answers.jsonl", "w") as f:
    for t in texts:
        f.write(json.dumps(row(t)) + "\n")
