"""Every family that stores its experts in stacks, and GPT-OSS as published (MXFP4): quantized with every kind of recipe,
verified, run and evaluated. An export has the logits of its decoded form, and a published MXFP4 model those of the decoded
one.

    expert_stacks.py NIBBLE [FAMILY...]     exit status 77: a package is missing
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

import own_packages

own_packages.need("ml_dtypes", "numpy", "safetensors")
import ml_dtypes
import numpy as np
import safetensors
from safetensors.numpy import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
BF16, E8M0 = ml_dtypes.bfloat16, ml_dtypes.float8_e8m0fnu
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
FAMILIES = ["gpt_oss", "llama4_text", "step3p7", "qwen3_5_moe", "qwen3_vl_moe", "mistral4", "gemma4_26b"]
# recipe, options, formats of the output
RECIPES = [("nvfp4", ["--calib"], ["modelopt"]), ("fp8", ["--calib"], ["modelopt"]), ("w4a16_nvfp4", [], ["modelopt"]),
           ("fp8", ["--calib"], ["compressed-tensors"])]
# Families whose stacks engines read as one parameter: only Model Optimizer's format has them.
ONLY_MODELOPT = {"gpt_oss"}
TEXT = "One day a model met a very small number and rounded it to zero. " * 12


def stored(folder):
    """Returns the bytes of every tensor of a folder with one file."""
    path = folder / "model.safetensors"
    return {name: bytes(t["data"]) for name, t in safetensors.deserialize(path.read_bytes())} if path.exists() else {}


def byte_tokenizer(folder):
    """A tokenizer with one token per byte, in GPT-2's alphabet of visible characters."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {b: chr(b) for b in visible}
    letters |= {b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in visible)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "vocab": {letters[b]: b for b in range(256)}, "merges": [], "byte_fallback": False, "fuse_unk": False,
             "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None}
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
                                                       "pre_tokenizer": level, "post_processor": None, "decoder": level, "model": model}))


class Job:
    def __init__(self, nibble, work):
        self.nibble, self.work, self.failures = nibble, work, []
        (work / "text.txt").write_text(TEXT)

    def run(self, *command, fails=None):
        done = subprocess.run([self.nibble, *map(str, command)], capture_output=True, text=True)
        if (done.returncode != 0) != (fails is not None) or (fails and fails not in done.stderr):
            self.failures.append(f"{' '.join(map(str, command))}: status {done.returncode}: {done.stderr.strip()[-500:]}")
        return done

    def logits(self, folder, ids, *flags):
        out = self.work / "logits.safetensors"
        out.unlink(missing_ok=True)
        self.run("logits", folder, "--ids", ids, "-o", out, "--compute", "f32", "--quiet", *flags)
        return load_file(out)["logits"] if out.exists() else np.zeros(1)

    def evaluate(self, folder):
        self.run("eval", folder, "--text", self.work / "text.txt", "--context", "64", "--quiet")
        self.run("generate", folder, "One day", "--max-tokens", "4", "--quiet")

    def quantized(self, source, recipe, flags, dialect, ids):
        out = self.work / f"{source.name}-{recipe}-{dialect}"
        calib = ["--calib", ids] if "--calib" in flags else flags
        where = f"{source.name} {recipe} {dialect}"
        arguments = ["quantize", source, "-o", out, "--recipe", recipe, "--format", dialect, "--quiet", *calib]
        if source.name in ONLY_MODELOPT and dialect != "modelopt":
            self.run(*arguments, fails="has no stacks of experts")
            return
        self.run(*arguments)
        if not out.exists():
            return
        byte_tokenizer(out)
        self.run("verify", out, "--against", source)
        self.run("convert", out, "-o", self.work / "plain", "--format", "bf16", "--quiet")
        a, b = self.logits(out, ids, "--weights-only"), self.logits(self.work / "plain", ids)
        # Decoded values are rounded to BF16, so a few tokens of a tiny model choose other experts.
        if a.shape != b.shape or not np.quantile(np.abs(a - b).max(-1), 0.9) <= 0.02 * np.abs(b).max():
            self.failures.append(f"{where}: logits differ from those of the decoded form")
        if not np.isfinite(self.logits(out, ids)).all():
            self.failures.append(f"{where}: logits with quantized inputs are not finite")
        self.evaluate(out)
        shutil.rmtree(self.work / "plain", ignore_errors=True)
        shutil.rmtree(out)


def published(folder, source):
    """Writes GPT-OSS with MXFP4 experts, and its decoded form in transformers' layout."""
    rng = np.random.default_rng(3)
    config, tensors = json.loads((source / "config.json").read_text()), load_file(source / "model.safetensors")
    experts, hidden, inner = config["num_local_experts"], config["hidden_size"], 64
    config["intermediate_size"] = inner
    packed, plain = dict(tensors), dict(tensors)
    for layer in range(config["num_hidden_layers"]):
        for name, fan_in, fan_out in (("gate_up_proj", hidden, 2 * inner), ("down_proj", inner, hidden)):
            stack = f"model.layers.{layer}.mlp.experts.{name}"
            del packed[stack]
            bias = (rng.standard_normal((experts, fan_out)) * 0.1).astype(BF16)
            packed[stack + "_bias"] = plain[stack + "_bias"] = bias
            codes = rng.integers(0, 16, (experts, fan_out, fan_in), dtype=np.uint8)
            scale = rng.integers(119, 123, (experts, fan_out, fan_in // 32), dtype=np.uint8)
            packed[stack + "_blocks"] = (codes[:, :, 0::2] | codes[:, :, 1::2] << 4).reshape(experts, fan_out, fan_in // 32, 16)
            packed[stack + "_scales"] = scale
            value = E2M1[codes] * np.repeat(scale.view(E8M0).astype(np.float32), 32, 2)
            plain[stack] = np.ascontiguousarray(value.astype(BF16).swapaxes(1, 2))
    for name, content, section in (("mxfp4", packed, {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}), ("decoded", plain, None)):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config | ({"quantization_config": section} if section else {})))
        save_file(content, folder / name / "model.safetensors", metadata={"format": "pt"})
        byte_tokenizer(folder / name)
    return folder / "mxfp4", folder / "decoded"


def check_published(job, source, ids):
    mxfp4, decoded = published(job.work, source)
    job.run("inspect", mxfp4, "--summary")
    job.run("verify", mxfp4)
    a, b = job.logits(mxfp4, ids), job.logits(decoded, ids)
    if a.shape != b.shape or not np.abs(a - b).max() <= 1e-5 * np.abs(b).max():
        job.failures.append("MXFP4: logits differ from those of the decoded form")
    job.run("convert", mxfp4, "-o", job.work / "again", "--format", "bf16", "--quiet")
    if stored(job.work / "again") != stored(decoded):
        job.failures.append("MXFP4: `convert --format bf16` gives other values than the decoded form")
    job.evaluate(mxfp4)
    job.run("quantize", mxfp4, "-o", job.work / "q1", "--recipe", "nvfp4", "--requantize", "--calib", ids, "--quiet")
    job.run("quantize", decoded, "-o", job.work / "q2", "--recipe", "nvfp4", "--calib", ids, "--quiet")
    if not stored(job.work / "q1") or stored(job.work / "q1") != stored(job.work / "q2"):
        job.failures.append("MXFP4: quantized from the codes and from the decoded form differ")
    job.run("convert", mxfp4, "-o", job.work / "no", "--format", "modelopt", "--quiet", fails="no stacks of experts in mxfp4")


def main():
    families = sys.argv[2:] or FAMILIES
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        with tarfile.open(ROOT / "tests" / "data" / "golden" / "families.tar.gz") as archive:
            archive.extractall(work / "families", filter="data")
        job = Job(str(pathlib.Path(sys.argv[1]).resolve()), work)
        for family in families:
            source = work / "families" / family
            ids = work / f"{family}.ids.safetensors"
            save_file({"input_ids": load_file(source / "expect.safetensors")["input_ids"]}, ids)
            for recipe, flags, dialects in RECIPES:
                for dialect in dialects:
                    job.quantized(source, recipe, flags, dialect, ids)
            if family == "gpt_oss":
                check_published(job, source, ids)
    for failure in job.failures:
        print(failure)
    print(f"{len(families)} families with {len(RECIPES)} recipes, {len(job.failures)} failures")
    return 1 if job.failures else 0


if __name__ == "__main__":
    sys.exit(main())
