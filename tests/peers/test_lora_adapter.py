#!/usr/bin/env python3
"""Compares an adapter of `nibble train` (lora.merge: false), loaded by PEFT, with nibble's merged model. usage:
test_lora_adapter.py PROGRAM
"""
import os
import subprocess
import sys
import tempfile

try:
    import peft
    import torch
    import transformers
except ImportError:
    sys.exit(77)

PROGRAM = os.path.abspath(sys.argv[1])
CHAT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "chat"))

with tempfile.TemporaryDirectory() as folder:
    with open(os.path.join(folder, "text.txt"), "w") as file:
        file.write("the quick brown fox jumps over the lazy dog and runs away. " * 60)

    def train(name, merge):
        with open(os.path.join(folder, name + ".yaml"), "w") as file:
            file.write(f"model: {CHAT}\noutput: {name}\nsteps: 4\nbatch: 2\nsequence: 32\ndata: {{text: text.txt}}\n"
                       f"optimizer: {{learning_rate: 0.02}}\nlora: {{rank: 4, alpha: 8, targets: [q_proj, down_proj], merge: {merge}}}\n")
        subprocess.run([PROGRAM, "train", name + ".yaml", "--quiet", "--threads", "1"], cwd=folder, check=True)
        return os.path.join(folder, name)

    alone, merged = train("alone", "false"), train("merged", "true")
    assert sorted(os.listdir(os.path.join(alone, "adapter"))) == ["adapter_config.json", "adapter_model.safetensors"]
    assert not os.path.exists(os.path.join(alone, "model"))
    load = lambda path: transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    base = load(CHAT)
    before = {name: value.clone() for name, value in base.state_dict().items()}
    adapted = peft.PeftModel.from_pretrained(base, os.path.join(alone, "adapter")).merge_and_unload().state_dict()
    wanted = load(os.path.join(merged, "model")).state_dict()
    changed = 0
    for name, value in wanted.items():
        rounded = adapted[name].to(torch.bfloat16).to(torch.float32)
        assert torch.equal(rounded, value), name
        changed += not torch.equal(value, before[name])
    assert changed == 4, f"{changed} matrices differ from the base's, expected q_proj and down_proj of two layers"
    again = subprocess.run([PROGRAM, "train", "alone.yaml", "--resume"], cwd=folder, capture_output=True, text=True)
    assert again.returncode == 0 and "has already completed its 4 steps" in again.stdout, again
print("PEFT loads the adapter; merged weights are nibble's, bit for bit")
