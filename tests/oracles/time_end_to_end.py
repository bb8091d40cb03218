"""Times NIBBLE over MODEL and compares it with cp: NIBBLE MODEL WORK ROUNDS [--device cpu --device cuda] [--threads N]
[--recipe NAME] [--json FILE]. tools/bench-end-to-end and tools/gpu call this.
"""
import argparse
import json
import pathlib
import resource
import shutil
import statistics
import subprocess
import time

RECIPES = {"nvfp4 max": "w4a16_nvfp4", "four-over-six": "nvfp4_four_over_six", "126 sweep": "nvfp4_w4a4_weight_mse_fp8_sweep", "fp8 128x128": "fp8_2d_blockwise_weight_only"}


def timed(*commands):
    """Returns wall seconds and processor seconds."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    for command in commands:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("nibble"), parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("work", type=pathlib.Path), parser.add_argument("rounds", type=int)
    parser.add_argument("--device", action="append"), parser.add_argument("--threads", action="append")
    parser.add_argument("--recipe", action="append"), parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    file = args.model / "model.safetensors"
    size = file.stat().st_size
    with file.open("rb") as f:  # into the page cache
        while f.read(1 << 24):
            pass
    runs = [(r, d, t) for r in args.recipe or RECIPES for d in args.device or ["cpu"] for t in args.threads or ["0"]]
    times, job = {"cp": []}, {}
    for _ in range(args.rounds):
        copy = str(args.work / "copy")
        times["cp"].append(timed(["cp", str(file), copy], ["sync", copy]))
        pathlib.Path(copy).unlink()
        for recipe, device, threads in runs:
            name = recipe + (f" {device}" if args.device else "") + (f" x{threads}" if args.threads else "")
            out = args.work / "out"
            command = [args.nibble, "quantize", str(args.model), "-o", str(out), "--recipe", RECIPES[recipe], "--weights-only", "--quiet", "--threads", threads]
            times.setdefault(name, []).append(timed(command + (["--device", device] if device != "cpu" else [])))
            job[name] = json.loads((out / "nibble-report.json").read_text())["timing"]
            shutil.rmtree(out)
    clock, processor = ({name: statistics.median(t[i] for t in times[name]) for name in times} for i in (0, 1))
    print(f"{size / 1e9:.2f} GB of BF16, medians of {args.rounds} rounds; quantize includes opening, reading everything back and the report")
    print(f"{'':24} {'GB/s':>7} {'of cp':>7} {'seconds':>8} {'quantizing':>11} {'processor':>11} {'peak memory':>12}")
    for name in times:
        inside = f"{job[name]['seconds']:9.2f} s" if name in job else f"{'':11}"
        memory = f"{job[name]['peak_anonymous_bytes'] / 1e6:9.1f} MB" if name in job else ""
        print(f"{name:24} {size / clock[name] / 1e9:7.2f} {100 * clock['cp'] / clock[name]:6.0f}% {clock[name]:8.3f} {inside} {processor[name]:9.2f} s {memory}")
    if args.json:
        args.json.write_text(json.dumps({"bytes": size, "rounds": args.rounds, "runs": {
            name: {"seconds": clock[name], "processor_seconds": processor[name], "gb_per_second": size / clock[name] / 1e9,
                   "fraction_of_cp": clock["cp"] / clock[name], "quantizing_seconds": job.get(name, {}).get("seconds")} for name in times}}, indent=1))


if __name__ == "__main__":
    main()
