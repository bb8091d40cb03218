"""Times NIBBLE over MODEL beside cp: NIBBLE MODEL WORK ROUNDS. Called by tools/bench-end-to-end."""
import json
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import time

RECIPES = {"nvfp4 max": "w4a16_nvfp4", "four-over-six": "nvfp4_four_over_six", "126 sweep": "nvfp4_w4a4_weight_mse_fp8_sweep", "fp8 128x128": "fp8_2d_blockwise_weight_only"}


def timed(*commands):
    """Seconds on the clock, and of the processor."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    for command in commands:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    nibble, model, work, rounds = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]), int(sys.argv[4])
    size = (model / "model.safetensors").stat().st_size
    (model / "model.safetensors").read_bytes()  # into the page cache
    times = {name: [] for name in ["cp", *RECIPES]}
    peak = {}
    for _ in range(rounds):
        copy = str(work / "copy")
        times["cp"].append(timed(["cp", str(model / "model.safetensors"), copy], ["sync", copy]))
        (work / "copy").unlink()
        for name, recipe in RECIPES.items():
            out = work / "out"
            times[name].append(timed([nibble, "quantize", str(model), "-o", str(out), "--recipe", recipe, "--weights-only", "--quiet"]))
            timing = json.loads((out / "nibble-report.json").read_text())["timing"]
            peak[name] = timing["peak_anonymous_bytes"]
            shutil.rmtree(out)
    clock, processor = ({name: statistics.median(t[i] for t in times[name]) for name in times} for i in (0, 1))
    print(f"{size / 1e9:.2f} GB of BF16, medians of {rounds} rounds; quantize includes opening, reading everything back and the report")
    print(f"{'':16} {'GB/s':>7} {'of cp':>7} {'processor':>11} {'peak memory':>12}")
    for name in times:
        memory = f"{peak[name] / 1e6:9.1f} MB" if name in peak else ""
        print(f"{name:16} {size / clock[name] / 1e9:7.2f} {100 * clock['cp'] / clock[name]:6.0f}% {processor[name]:9.2f} s {memory}")


if __name__ == "__main__":
    main()
