"""Calibrates the golden models with `nibble quantize --calib` on Model Optimizer's token ids and compares every
input_scale, k_scale and v_scale with Model Optimizer's (tests/data/golden/modelopt/*.json).

    modelopt_calibration.py NIBBLE [GOLDEN_ROOT] [--smollm2 CHECKPOINT] [--only TEXT] [--device cuda]

Exit status 0: all within 2 % (they are maxima of activations; an FP32 and a BF16 forward pass differ by up to 1.2 %,
tests/data/golden/README.md). For SmolLM2, where roundings of 30 layers add up, 2 in 100 may differ by up to 3 %. 1:
something differs.
"""
import argparse
import json
import pathlib
import statistics
import struct
import subprocess
import sys
import tempfile

from modelopt_golden import PRESETS

SCALES = ("input_scale", "k_scale", "v_scale")


def scales_of(folder):
    """Returns name -> value of every F32 scalar scale in a folder's safetensors files, read without a library."""
    found = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        data = path.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        for name, entry in json.loads(data[8 : 8 + length]).items():
            if name.endswith(SCALES) and entry["dtype"] == "F32":
                (found[name],) = struct.unpack_from("<f", data, 8 + length + entry["data_offsets"][0])
    return found


def write_ids(path, ids):
    header = json.dumps({"input_ids": {"dtype": "I64", "shape": [1, len(ids)], "data_offsets": [0, 8 * len(ids)]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack(f"<{len(ids)}q", *ids))


def run_case(nibble, wanted, config, source, ids, work, deep, device):
    preset, *extra = config.split("+")
    out = work / "out"
    command = [nibble, "quantize", source, "-o", out, "--recipe", PRESETS[preset], "--arithmetic", "true", "--quiet",
               "--calib", ids, "--device", device] + (["--kv", "fp8"] if extra else [])
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        return [f"exit {done.returncode}: {done.stderr.strip()}"], []
    have = scales_of(out)
    problems = [f"missing {name}" for name in wanted.keys() - have.keys()]
    problems += [f"unexpected {name}" for name in have.keys() - wanted.keys()]
    errors = [abs(have[name] / value - 1) for name, value in wanted.items() if name in have]
    far = [f"{name}: {have[name]:.6g} instead of {value:.6g}" for name, value in wanted.items()
           if name in have and abs(have[name] / value - 1) > 0.02]
    if not deep or len(far) > len(wanted) / 50 or max(errors, default=0) > 0.03:
        problems += far
    return problems, errors


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("nibble")
    parser.add_argument("golden", nargs="?")
    parser.add_argument("--smollm2")
    parser.add_argument("--only", default="")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    here = pathlib.Path(__file__).resolve().parents[2]
    root = pathlib.Path(args.golden or here / "tests/data/golden")
    failed = cases = 0
    for file in sorted((root / "modelopt").glob("*--*.json")):
        model, config = file.stem.split("--", 1)
        golden = json.loads(file.read_text())
        wanted = {t["name"]: t["value"] for t in golden["tensors"] if t["name"].endswith(SCALES)}
        smollm2 = model.startswith("smollm2")
        if args.only not in file.stem or not wanted or (smollm2 and not args.smollm2):
            continue
        with tempfile.TemporaryDirectory() as folder:
            work = pathlib.Path(folder)
            ids = root / "models" / model / "expect.safetensors"
            if smollm2:
                ids = work / "ids.safetensors"
                write_ids(ids, json.loads((root / "modelopt" / f"{model}.calib.json").read_text())["input_ids"])
            source = args.smollm2 if smollm2 else root / "models" / model
            problems, errors = run_case(args.nibble, wanted, config, source, ids, work, smollm2, args.device)
        cases += 1
        failed += bool(problems)
        if problems:
            print(f"FAILED {file.stem}: {len(problems)} problems: " + "; ".join(problems[:3]))
        else:
            print(f"ok {file.stem}: {len(errors)} scales, off by {statistics.median(errors):.3%} (median), {max(errors):.3%} at most")
    print(f"{cases - failed} of {cases} within the tolerance")
    return 1 if failed or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
