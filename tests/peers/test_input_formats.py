"""Compares inputs that a checkpoint quantizes at run time between nibble and transformers (compressed-tensors).

    test_input_formats.py build/cpu/nibble

A random Llama is quantized in every format of inputs. Only q, k and v are quantized, so that both programs quantize the
same BF16 rows and errors are not amplified. "effect" is how much quantized inputs change the logits; the two programs
may differ by the given share of it (transformers rounds scales of NVFP4 and FP8 to BF16; MX scales are powers of two).
Exit status 77: a package is missing.
"""
import json
import os
import subprocess
import sys
import tempfile

os.environ["TQDM_DISABLE"] = "1"
try:
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM, LlamaConfig
    from transformers.utils import logging
except ImportError as missing:
    print(missing)
    sys.exit(77)
logging.disable_progress_bar()

VOCAB = 512
# recipe -> (flags, allowed difference as a share of the effect)
CASES = {"nvfp4": (True, 0.3), "fp8": (True, 0.75), "fp8_per_channel_per_token": (False, 0.75), "block fp8": (False, 0.75), "mxfp8": (False, 0.25),
         "mxfp4": (False, 0.08)}


def distance(a, b):
    return ((a - b).norm() / b.norm()).item()


class Peers:
    def __init__(self, program, work):
        self.program, self.work = os.path.realpath(program), work
        torch.manual_seed(0)
        config = LlamaConfig(hidden_size=256, intermediate_size=512, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
                             vocab_size=VOCAB, max_position_embeddings=256, initializer_range=0.06)
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(os.path.join(work, "source"))
        self.ids = torch.randint(0, VOCAB, (4, 64))
        save_file({"input_ids": self.ids}, os.path.join(work, "ids.safetensors"))

    def nibble(self, *words):
        done = subprocess.run([self.program, *words], cwd=self.work, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"nibble {' '.join(words)}: {done.stderr}")

    def logits(self, folder, *flags):
        out = folder + "".join(flags) + ".safetensors"
        self.nibble("logits", folder, "--ids", "ids.safetensors", "-o", out, *flags)
        return load_file(os.path.join(self.work, out))["logits"].float()

    def case(self, name, calibrated, most):
        folder = name.replace(" ", "-")
        recipe = "fp8_2d_blockwise_weight_only" if name == "block fp8" else name
        self.nibble("quantize", "source", "-o", folder, "--recipe", recipe, "--format", "compressed-tensors", "--quiet", "--ignore", "*.mlp", "--ignore",
                    "*.o_proj", *(["--calib", "ids.safetensors"] if calibrated else []))
        path = os.path.join(self.work, folder, "config.json")
        config = json.load(open(path))
        if name == "block fp8":  # the inputs of DeepSeek's checkpoints
            config["quantization_config"]["config_groups"]["group_0"]["input_activations"] = {
                "num_bits": 8, "type": "float", "symmetric": True, "group_size": 128, "strategy": "group", "dynamic": True}
            json.dump(config, open(path, "w"))
        ours, plain = self.logits(folder), self.logits(folder, "--weights-only")
        model = AutoModelForCausalLM.from_pretrained(os.path.join(self.work, folder), dtype=torch.bfloat16).eval()
        with torch.no_grad():
            model(self.ids[:1])  # decompresses weights that are decompressed lazily
            theirs = model(self.ids).logits.float()
        effect, apart = distance(ours, plain), distance(ours, theirs)
        right = 0.01 < effect and apart < most * effect
        print(f"{'ok   ' if right else 'WRONG'} {name:26} inputs move the logits by {effect:.4f}, the programs differ by {apart:.4f}")
        return right


def main():
    with tempfile.TemporaryDirectory() as work:
        peers = Peers(sys.argv[1], work)
        return 0 if all([peers.case(name, *rest) for name, rest in CASES.items()]) else 1


if __name__ == "__main__":
    sys.exit(main())
