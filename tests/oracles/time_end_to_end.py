"""Times NIBBLE over MODEL beside cp: NIBBLE MODEL WORK ROUNDS. Called by tools/bench-end-to-end."""
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

RECIPES = {"nvfp4 max": "w4a16_nvfp4", "four-over-six": "nvfp4_four_over_six", "126 sweep": "nvfp4_w4a4_weight_mse_fp8_sweep", "fp8 128x128": "fp8_2d_blockwise_weight_only"}


def timed(command):
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main():
    nibble, model, work, rounds = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]), int(sys.argv[4])
    size = (model / "model.safetensors").stat().st_size
    (model / "model.safetensors").read_bytes()  # into the page cache
    times = {name: [] for name in ["cp", *RECIPES]}
    peak = {}
    for _ in range(rounds):
        times["cp"].append(timed(["cp", str(model / "model.safetensors"), str(work / "copy")]))
        (work / "copy").unlink()
        for name, recipe in RECIPES.items():
            out = work / "out"
            times[name].append(timed([nibble, "quantize", str(model), "-o", str(out), "--recipe", recipe, "--weights-only", "--quiet"]))
            timing = json.loads((out / "nibble-report.json").read_text())["timing"]
            peak[name] = timing["peak_anonymous_bytes"]
            shutil.rmtree(out)
    copy = size / statistics.median(times["cp"]) / 1e9
    print(f"{size / 1e9:.2f} GB of BF16, medians of {rounds} rounds; quantize includes opening, verifying against the source and the report")
    print(f"{'':16} {'GB/s':>7} {'of cp':>7} {'peak memory':>12}")
    print(f"{'cp':16} {copy:7.2f}")
    for name in RECIPES:
        rate = size / statistics.median(times[name]) / 1e9
        print(f"{name:16} {rate:7.2f} {100 * rate / copy:6.0f}% {peak[name] / 1e6:9.1f} MB")


if __name__ == "__main__":
    main()
