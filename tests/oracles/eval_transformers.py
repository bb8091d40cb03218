"""Compares `nibble eval` with transformers in FP32: sliding-window perplexity and LAMBADA's last word.

    eval_transformers.py NIBBLE MODEL TEXT LAMBADA.jsonl [--items 40] [--bytes 12000]

Run by hand; needs torch and transformers. The definitions are implemented again here: transformers' "Perplexity of
fixed-length models" and lm-evaluation-harness' lambada.
"""
import argparse
import json
import math
import subprocess
import sys
import tempfile

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

p = argparse.ArgumentParser()
p.add_argument("nibble")
p.add_argument("model")
p.add_argument("text")
p.add_argument("lambada")
p.add_argument("--items", type=int, default=40)
p.add_argument("--bytes", type=int, default=12000)
a = p.parse_args()
tokenizer = AutoTokenizer.from_pretrained(a.model)
model = AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.float32).eval()


@torch.no_grad()
def log_probs(ids):
    return torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)


text = open(a.text, "rb").read()[:a.bytes].decode(errors="ignore")
ids = tokenizer(text, add_special_tokens=False)["input_ids"]
context, stride, nll, counted, begin = 256, 128, 0.0, 1, 0
while counted < len(ids):
    end = min(begin + context, len(ids))
    rows = log_probs(ids[begin:end])
    nll -= sum(rows[i - begin - 1, ids[i]].item() for i in range(counted, end))
    counted, begin = end, begin + stride
perplexity = math.exp(nll / (len(ids) - 1))

right, word_nll = 0, 0.0
lines = [json.loads(line)["text"] for line in open(a.lambada)][:a.items]
for line in lines:
    context_text, word = line.rsplit(" ", 1)
    context_text = context_text.rstrip()
    whole = tokenizer(line, add_special_tokens=False)["input_ids"]
    first = len(tokenizer(context_text, add_special_tokens=False)["input_ids"])
    rows = log_probs(whole)
    word_nll -= sum(rows[i - 1, whole[i]].item() for i in range(first, len(whole)))
    right += all(rows[i - 1].argmax().item() == whole[i] for i in range(first, len(whole)))

with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
    f.write(text)
    f.flush()
    out = subprocess.run([a.nibble, "eval", a.model, "--text", f.name, "--context", str(context), "--stride", str(stride), "--lambada", a.lambada,
                          "--limit", str(a.items), "--compute", "f32", "--json"], capture_output=True, text=True, check=True).stdout
ours = {m: v["value"] for t in json.loads(out)["checkpoints"][0]["tasks"] for m, v in t["metrics"].items()}
worst = 0.0
for name, theirs in (("perplexity", perplexity), ("accuracy", right / len(lines)), ("perplexity of the word", math.exp(word_nll / len(lines)))):
    difference = abs(ours[name] / theirs - 1) if theirs else abs(ours[name])
    worst = max(worst, difference)
    print(f"{name:<24} transformers {theirs:.8g}  nibble {ours[name]:.8g}  relative difference {difference:.1e}")
sys.exit(worst > 1e-4)
