"""Compares the logits of `nibble logits` with transformers for every family that the engine runs, exactly as
transformers saves it.

    test_family_logits.py NIBBLE
"""

import pathlib
import subprocess
import sys
import tempfile

try:
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
except ImportError:
    sys.exit(77)

import model_types

transformers.logging.set_verbosity_error()
torch.set_num_threads(2)
# Tolerance: largest difference divided by the largest logit. nemotron_h: transformers clamps dt at time_step_min,
# nibble and the serving engines at time_step_limit.
FAMILIES = {"llama": 1e-5, "llama+tied": 1e-5, "mistral": 1e-5, "mixtral": 1e-5, "qwen2": 1e-5, "qwen3": 1e-5, "qwen3_moe": 1e-5,
            "gemma3_text": 1e-4, "gemma3": 1e-4, "deepseek_v3": 1e-5, "nemotron_h": 1e-2, "nemotron_h+moe": 1e-2}


def main():
    nibble = str(pathlib.Path(sys.argv[1]).resolve())
    failures = 0
    for name, tolerance in FAMILIES.items():
        with tempfile.TemporaryDirectory() as work:
            folder = pathlib.Path(work) / name
            model_types.make(name, folder)
            auto = transformers.AutoModelForImageTextToText if name == "gemma3" else transformers.AutoModelForCausalLM
            model = auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
            ids = (torch.arange(40).reshape(1, 40) * 37 + 11) % 250
            with torch.no_grad():
                theirs = model(ids).logits[0]
            save_file({"input_ids": ids}, f"{work}/ids.safetensors")
            done = subprocess.run([nibble, "logits", folder, "--ids", f"{work}/ids.safetensors", "-o", f"{work}/out.safetensors", "--compute", "f32"],
                                  capture_output=True, text=True)
            if done.returncode != 0:
                failures += 1
                print(f"{name}: {done.stderr.strip()}")
                continue
            ours = load_file(f"{work}/out.safetensors")["logits"][0]
            difference = ((ours - theirs).abs().max() / theirs.abs().max()).item()
            print(f"{name}: {difference:.1e} of the largest logit")
            failures += difference > tolerance
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
