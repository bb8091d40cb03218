"""Quantizes the golden models with `nibble quantize` and compares every tensor and both JSON documents with Model
Optimizer's: tests/data/modelopt/*.json (checkpoints of made_up_model.py) and tests/data/golden/modelopt/*.json.

    modelopt_golden.py NIBBLE [GOLDEN_ROOT] [--smollm2 CHECKPOINT] [--only TEXT] [--kernel NAME]

GOLDEN_ROOT: tests/data/golden. CHECKPOINT: the file fetched by tools/fetch-smollm2, if any. Exit status 0: all equal;
1: something differs. Input and KV scales come from the goldens (they are maxima of activations); everything else is
recomputed. A searched tensor may differ where Model Optimizer's two best losses differ by less than FP32 rounding. The
golden counts such blocks in search.near_ties, and at most that many tensors may differ.
"""
import argparse
import hashlib
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

import made_up_model

PRESETS = {
    "NVFP4_DEFAULT_CFG": "nvfp4",
    "NVFP4_FOUR_OVER_SIX_CFG": "nvfp4_four_over_six",
    "NVFP4_W4A4_WEIGHT_MSE_FP8_SWEEP_CFG": "nvfp4_w4a4_weight_mse_fp8_sweep",
    "NVFP4_MLP_ONLY_CFG": "nvfp4_mlp_only",
    "NVFP4_EXPERTS_ONLY_CFG": "nvfp4_experts_only",
    "W4A16_NVFP4_CFG": "w4a16_nvfp4",
    "FP8_DEFAULT_CFG": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN_CFG": "fp8_per_channel_per_token",
    "FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG": "fp8_2d_blockwise_weight_only",
    "MXFP4_DEFAULT_CFG": "mxfp4",
    "MXFP4_MLP_WEIGHT_ONLY_CFG": "mxfp4_mlp_weight_only",
    "MXFP8_DEFAULT_CFG": "mxfp8",
    "MAMBA_MOE_NVFP4_AGGRESSIVE_CFG": "mamba_moe_nvfp4_aggressive",
    "MAMBA_MOE_NVFP4_CONSERVATIVE_CFG": "mamba_moe_nvfp4_conservative",
    "NVFP4_4O6": "huggingface/models/nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16/ptq/nvfp4-4o6",
}
NEEDS_ACTIVATIONS = {"NVFP4_WEIGHT_ONLY_GPTQ", "NVFP4_WEIGHT_ONLY_LOCAL_HESSIAN"}


def tensors_of(folder):
    """Returns name -> (dtype, shape, sha256) of every tensor in a folder's safetensors files, read without a library.
    """
    found = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        data = path.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        for name, entry in json.loads(data[8 : 8 + length]).items():
            if name == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            digest = hashlib.sha256(data[8 + length + begin : 8 + length + end]).hexdigest()
            found[name] = (entry["dtype"], entry["shape"], digest)
    return found


def run_case(nibble, golden_file, source, work, kernel):
    golden = json.loads(golden_file.read_text())
    config = golden_file.stem.split("--", 1)[1]
    preset, *extra = config.split("+")
    scales = {t["name"]: t["value"] for t in golden["tensors"] if t["name"].endswith(("input_scale", "k_scale", "v_scale"))}
    scales_file, out = work / "scales.json", work / "out"
    scales_file.write_text(json.dumps(scales))
    command = [nibble, "quantize", source, "-o", out, "--recipe", PRESETS[preset], "--arithmetic", "true", "--quiet"]
    # the file of tools/fetch-smollm2 is already rounded, and the expectations are for its values
    if str(source).endswith(".gguf"):
        command += ["--requantize"]
    if kernel:
        command += ["--kernel", kernel]
    if scales:
        command += ["--input-scales", scales_file]
    if extra:
        assert extra == ["FP8_KV_CFG"], extra
        command += ["--kv", "fp8"]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        return [f"exit {done.returncode}: {done.stderr.strip()}"]

    problems, differing = [], []
    have = tensors_of(out)
    # Unquantized tensors keep their stored dtype; a loader casts them to the declared one.
    quantized = {t["name"].rpartition(".")[0] for t in golden["tensors"] if t["name"].endswith("weight_scale")}
    for t in golden["tensors"]:
        ours = have.pop(t["name"], None)
        if ours and golden.get("stored") and t["name"].rpartition(".")[0] not in quantized:
            continue
        if ours is None:
            problems.append(f"missing tensor {t['name']}")
        elif (ours[0], ours[1]) != (t["dtype"], t["shape"]):
            problems.append(f"{t['name']}: {ours[0]} {ours[1]}, golden {t['dtype']} {t['shape']}")
        elif ours[2] != t["sha256"]:
            differing.append(t["name"])
    problems += [f"unexpected tensor {name}" for name in have]
    search = golden.get("search", {})
    near_ties = search.get("near_ties", search.get("ties_within_1e-6_exact_ones_included", 0))
    # A search changes codes and block scales, never the scale of a tensor or an input. Even with many ties (SmolLM2's
    # weights lie on a 4-bit grid) most tensors are equal.
    scalars = [name for name in differing if not name.endswith((".weight", ".weight_scale"))]
    if scalars or 3 * len(differing) > len(golden["tensors"]):
        problems.append(f"{len(differing)} of {len(golden['tensors'])} tensors differ, scalars: {scalars[:4]}")
    # One block with another result changes a weight tensor and its scales.
    if len({name.removesuffix("_scale") for name in differing}) > near_ties:
        problems.append(f"{len(differing)} tensors differ ({near_ties} near ties allowed): {differing[:4]}")

    ours = json.loads((out / "config.json").read_text())["quantization_config"]
    if ours != golden["quantization_config"]:
        problems.append(f"quantization_config: {json.dumps(ours)[:600]}\n      golden {json.dumps(golden['quantization_config'])[:600]}")
    ours = json.loads((out / "hf_quant_config.json").read_text())
    if ours != golden["hf_quant_config"]:
        problems.append(f"hf_quant_config: {json.dumps(ours)[:600]}\n      golden {json.dumps(golden['hf_quant_config'])[:600]}")
    return problems


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("nibble", type=pathlib.Path)
    checkout = pathlib.Path(__file__).resolve().parents[2]
    fetched = pathlib.Path(os.environ.get("NIBBLE_CACHE") or checkout / ".cache") / "SmolLM2-135M-Instruct.Q4_1.gguf"
    parser.add_argument("golden", type=pathlib.Path, nargs="?", default=checkout / "tests/data/golden")
    parser.add_argument("--smollm2", type=pathlib.Path, default=fetched if fetched.exists() else None,
                        help="the GGUF, or the folder `nibble import` makes of it")
    parser.add_argument("--only", default="")
    parser.add_argument("--kernel", default="")
    args = parser.parse_args()
    files = sorted((checkout / "tests/data/modelopt").glob("*--*.json")) + sorted((args.golden / "modelopt").glob("*--*.json"))
    passed = failed = skipped = 0
    for file in files:
        if args.only not in file.stem:
            continue
        model, config = file.stem.split("--", 1)
        golden = json.loads(file.read_text())
        made_up = golden["model"] if "stored" in golden else None  # the larger set has the folder's name there
        source = args.smollm2 if model == "smollm2-135m" else args.golden / "models" / model
        if config in NEEDS_ACTIVATIONS or source is None:
            skipped += 1
            print(f"skip {file.stem}: {'needs activations' if source else 'no --smollm2 folder'}")
            continue
        with tempfile.TemporaryDirectory() as work:
            if made_up:
                source = pathlib.Path(work) / "source"
                made_up_model.write_model(source, made_up, golden["stored"])
            problems = run_case(args.nibble, file, source, pathlib.Path(work), args.kernel)
        failed, passed = failed + bool(problems), passed + (not problems)
        print(f"{'FAIL' if problems else 'ok  '} {file.stem}")
        for problem in problems[:8]:
            print("    ", problem)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
