"""Runs every golden family with Model Optimizer's presets: a job whose dry run passes must succeed, `nibble verify`
must find no problem in its output, and tensors and lists of excluded modules must equal Model Optimizer's export.

    golden_families.py NIBBLE [FAMILY...]

The repository has ten families (tests/data/golden/families): gated delta nets, short convolutions, Mamba-2 with
attention, Kimi delta attention, indexers, stacks of experts. Those of ../shared/golden/families are tested too if the
folder exists.
"""
import hashlib
import json
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
ALL = ROOT.parent / "shared" / "golden" / "families"
GOLDEN = {path.name: path for root in (ROOT / "tests" / "data" / "golden" / "families", ALL) if root.is_dir() for path in root.iterdir()}
RECIPES = {"NVFP4_DEFAULT_CFG": ("nvfp4", True), "FP8_DEFAULT_CFG": ("fp8", True), "W4A16_NVFP4_CFG": ("w4a16_nvfp4", False),
           "NVFP4_FOUR_OVER_SIX_CFG": ("nvfp4_four_over_six", True)}
# Families whose bytes differ, and the reason.
DIFFERENT = {
    "step3p7": "it exports transformers' names",
}
# Tensors that transformers saves in another dtype than it reads.
ROUND_TRIP = {"gpt_oss": ["model.norm.weight", *(f"model.layers.{i}.{n}_layernorm.weight" for i in range(2) for n in ("input", "post_attention"))]}
# Tensors that are not compared: Model Optimizer stores routers and biases in F32, and three convolutions as one.
NOT_COMPARED = {"hunyuan_v1_moe": r"\.gate\.wg\.", "lfm2_moe": r"\.expert_bias$", "kimi_linear": r"\.[qkv]?_?conv1d\."}


def kimi_name(name, experts):
    """Returns the published name for that of transformers' module. `experts`: the layers ("model.layers.1.") with experts."""
    layer = re.match(r"(?:model\.layers\.\d+\.)?", name).group()
    name = name.replace("self_attn.forget_gate.", "self_attn.")
    if layer not in experts:
        return name
    name = name.replace(".mlp.", ".block_sparse_moe.")
    for module, number in (("gate", "w1"), ("down", "w2"), ("up", "w3")):
        name = re.sub(rf"(\.experts\.\d+)\.{module}_proj", rf"\1.{number}", name)
    return name
# Families whose lists differ in names: Model Optimizer uses names of transformers' modules, nibble those of the
# tensors.
LISTS = {"phimoe": "router for gate", "deepseek_v4": "lm_head for head", "kimi_linear": "mlp.gate for block_sparse_moe.gate",
         "step3p7": "model.language_model and mlp.gate for model and moe.gate",
         "minimax_m3": "model.vision_tower for vision_tower"}


def tensors_of(folder):
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        for name, t in json.loads(data[8 : 8 + length]).items():
            if name != "__metadata__":
                begin, end = (8 + length + o for o in t["data_offsets"])
                found[name] = (t["dtype"], t["shape"], hashlib.sha256(data[begin:end]).hexdigest())
    return found


def check(nibble, family, golden, out, failures):
    recipe, inputs = RECIPES[golden.stem.split("--")[1]]
    document = json.loads(golden.read_text())
    if family == "kimi_linear":
        experts = {re.match(r"model\.layers\.\d+\.", t["name"]).group() for t in document["tensors"] if ".experts." in t["name"]}
        for t in document["tensors"]:
            t["name"] = kimi_name(t["name"], experts)
    command = [nibble, "quantize", GOLDEN[family], "-o", out, "--recipe", recipe, "--arithmetic", "true"]
    scales = {t["name"]: float.fromhex(t["hex"]) for t in document["tensors"] if t["name"].endswith("input_scale")}
    if inputs and family not in DIFFERENT:
        out.with_suffix(".json").write_text(json.dumps(scales))
        command += ["--input-scales", out.with_suffix(".json")]
    elif inputs:
        command += ["--weights-only"] if recipe != "fp8" else ["--weights-only", "--format", "compressed-tensors"]
    dry = subprocess.run([*map(str, command), "--dry-run"], capture_output=True, text=True)
    real = subprocess.run([*map(str, command), "--quiet"], capture_output=True, text=True)
    where = f"{family} {recipe}"
    if dry.returncode != real.returncode:
        failures.append(f"{where}: the dry run ends with {dry.returncode}, the job with {real.returncode}: {real.stderr.strip()[-400:]}")
    if real.returncode:
        if family not in DIFFERENT:
            failures.append(f"{where}: {real.stderr.strip()[-400:]}")
        return
    verify = subprocess.run([nibble, "verify", str(out)], capture_output=True, text=True)
    if verify.returncode:
        failures.append(f"{where}: verify: {verify.stdout[:400]}")
    want = {t["name"]: (t["dtype"], t["shape"], t["sha256"]) for t in document["tensors"]}
    have = tensors_of(out)
    for name in [n for n in ROUND_TRIP.get(family, []) if n in have]:
        del have[name], want[name]
    if family in NOT_COMPARED:
        have, want = ({n: t for n, t in tensors.items() if not re.search(NOT_COMPARED[family], n)} for tensors in (have, want))
    if family not in DIFFERENT and have != want:
        failures.append(f"{where}: tensors differ: {[n for n in sorted(want | have) if want.get(n) != have.get(n)][:5]}")
    if family not in LISTS and (out / "hf_quant_config.json").exists():
        have = json.loads((out / "hf_quant_config.json").read_text())["quantization"]["exclude_modules"]
        want = document["hf_quant_config"]["quantization"]["exclude_modules"]
        if have != want:
            failures.append(f"{where}: lists differ: {sorted(set(have) ^ set(want))}")


def main():
    nibble, families = sys.argv[1], sys.argv[2:] or sorted(GOLDEN)
    failures, jobs = [], 0
    with tempfile.TemporaryDirectory() as scratch:
        for family in families:
            for golden in sorted(GOLDEN[family].glob("modelopt--*.json")):
                check(nibble, family, golden, pathlib.Path(scratch) / f"{family}-{golden.stem}", failures)
                jobs += 1
    for failure in failures:
        print(failure)
    print(f"{jobs} jobs, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
