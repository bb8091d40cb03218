"""Loads a compressed-tensors folder with transformers and compares it with nibble's BF16 decoding: every weight, the
logits, and a greedy continuation.

    transformers_peer.py COMPRESSED DECODED

transformers decompresses to BF16 with its own arithmetic; nibble decodes in FP32 and rounds once. Weights must agree to
a few BF16 steps.
"""
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPT = "The capital of France is"


def main():
    compressed, decoded = sys.argv[1:3]
    tokenizer = AutoTokenizer.from_pretrained(compressed)
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids
    models, logits = {}, {}
    for name, folder in (("compressed", compressed), ("decoded", decoded)):
        model = models[name] = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
        with torch.no_grad():
            model(ids)  # decompresses weights that are decompressed lazily
            logits[name] = model(ids).logits.float()
            text = tokenizer.decode(model.generate(ids, max_new_tokens=24, do_sample=False)[0])
        print(f"{name:10} {text!r}")

    peer = dict(models["compressed"].named_parameters())
    equal = total = 0
    worst = 0.0
    for name, ours in models["decoded"].named_parameters():
        theirs = peer[name].float()
        ours = ours.float()
        equal += (theirs == ours).sum().item()
        total += ours.numel()
        worst = max(worst, ((theirs - ours).abs() / ours.abs().clamp_min(1e-30)).max().item())
    a, b = logits["compressed"], logits["decoded"]
    relative = ((a - b).abs().max() / b.abs().max()).item()
    same = (a.argmax(-1) == b.argmax(-1)).float().mean().item()
    print(f"weights: {100 * equal / total:.2f} % equal, largest relative difference {worst:.2e} (a BF16 step is 7.8e-03)")
    print(f"logits: largest difference {relative:.2e} of max |logit|, top token equal at {100 * same:.0f} % of {ids.numel()} positions")
    return 0 if worst < 1.6e-2 else 1


if __name__ == "__main__":
    sys.exit(main())
