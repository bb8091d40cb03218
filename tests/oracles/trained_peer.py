#!/usr/bin/env python3
"""Checks that an export of `nibble train` has the same loss in transformers: trains a small Llama on this repository's
pages, loads OUTPUT/model with transformers and computes the validation loss of the same windows. Exit status 1 if
they differ by more than BF16's tolerance.

    trained_peer.py NIBBLE [STEPS]        needs torch, transformers (tools/check-transformers NIBBLE --trained installs them)
"""
import json, pathlib, subprocess, sys, tempfile

import torch
from transformers import AutoModelForCausalLM

ROOT = pathlib.Path(__file__).resolve().parents[2]
BATCH, BATCHES, SEQUENCE = 4, 4, 64

def main(nibble, steps=60):
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        start = folder / 'start'
        start.mkdir()
        for name in ('tokenizer.json', 'tokenizer_config.json'): (start / name).write_bytes((ROOT / 'tests/data/chat' / name).read_bytes())
        (start / 'config.json').write_text(json.dumps({
            'architectures': ['LlamaForCausalLM'], 'model_type': 'llama', 'torch_dtype': 'bfloat16', 'hidden_size': 64, 'intermediate_size': 192, 'num_hidden_layers': 3,
            'num_attention_heads': 4, 'num_key_value_heads': 2, 'head_dim': 16, 'vocab_size': 272, 'rms_norm_eps': 1e-05, 'hidden_act': 'silu',
            'max_position_embeddings': 512, 'rope_theta': 10000.0, 'tie_word_embeddings': True, 'bos_token_id': 269, 'eos_token_id': 271}))
        (folder / 'train.yaml').write_text(
            f'model: {start}\nrandom_start: true\noutput: {folder}/run\nsteps: {steps}\nbatch: {BATCH}\nsequence: {SEQUENCE}\n'
            f'data: {{text: {ROOT}/docs/architecture.md, validation: {ROOT}/docs/formats.md}}\n'
            f'optimizer: {{kind: muon, learning_rate: 3e-3}}\nvalidation: {{batches: {BATCHES}}}\n')
        subprocess.run([nibble, 'train', folder / 'train.yaml', '--quiet'], check=True)
        lines = [json.loads(line) for line in (folder / 'run/train.jsonl').read_text().splitlines()]
        first, own = next(l['loss'] for l in lines if 'loss' in l), lines[-1]['validation']
        model = AutoModelForCausalLM.from_pretrained(folder / 'run/model', dtype=torch.bfloat16).eval()
        tokenized = subprocess.run([nibble, 'tokenize', folder / 'run/model', '--json'], input=(ROOT / 'docs/formats.md').read_bytes(), capture_output=True, check=True)
        ids = json.loads(tokenized.stdout)['ids']
        rows = torch.tensor([ids[r * SEQUENCE:r * SEQUENCE + SEQUENCE + 1] for r in range(BATCH * BATCHES)])
        with torch.no_grad(): logits = model(rows[:, :-1]).logits
        peer = torch.nn.functional.cross_entropy(logits.double().flatten(0, 1), rows[:, 1:].flatten()).item()
        # A BF16 logit has a relative error of 2^-9; means over 1,024 positions agree much better.
        print(f'loss of the first step {first:.4f}, validation: nibble {own:.6f}, transformers {peer:.6f}, difference {peer - own:+.2e}')
        return 0 if abs(peer - own) < 5e-4 * own and own < first - 1 else 1

if __name__ == '__main__':
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:])))
