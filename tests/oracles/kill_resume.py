"""Kills `nibble quantize` (SIGKILL) at random moments and resumes it until it is complete: every file must equal that
of an undisturbed run. `kill_resume.py build/cpu/nibble [--rounds 20]`

Not compared: times in the report, and the command line in the manifest and the report.
"""
import hashlib
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

import random_model

RECIPES = (["--recipe", "nvfp4_four_over_six", "--weights-only"], ["--recipe", "w4a16_nvfp4"], ["--recipe", "fp8_per_channel_per_token"])
# Ranges, solutions of finished blocks and the export survive a kill. IDS: token ids, made below.
CALIBRATED = (["--recipe", "nvfp4_nibble_best", "--calib", "IDS", "--calib-gradients", "256"], ["--recipe", "w4a16_nvfp4_gptq", "--calib", "IDS"])


def without_times(value):
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if k not in ("timing", "command")}
    return [without_times(v) for v in value] if isinstance(value, list) else value


def content(folder):
    out = {}
    for root, _, names in os.walk(folder):
        for name in names:
            if name.startswith(".nibble-"):
                continue  # killed between the last rename and the last removal; the export is complete
            path = os.path.join(root, name)
            key = os.path.relpath(path, folder)
            data = open(path, "rb").read()
            if key in ("nibble.json", "nibble-report.json"):
                data = json.dumps(without_times(json.loads(data))).encode()
            elif key.endswith(".html"):
                data = b""
            out[key] = hashlib.sha256(data).hexdigest()
    return out


def write_ids(path, rng, rows, columns, vocab):
    data = struct.pack(f"<{rows * columns}q", *(rng.randrange(vocab) for _ in range(rows * columns)))
    header = json.dumps({"input_ids": {"dtype": "I64", "shape": [rows, columns], "data_offsets": [0, len(data)]}}).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header + data)


def main():
    p = random_model.parser()
    p.add_argument("nibble")
    p.add_argument("--rounds", type=int, default=20)
    p.add_argument("--calibrated", action="store_true", help="jobs that calibrate, on a smaller model")
    p.set_defaults(hidden=512, inner=2048, layers=8, vocab=20000, shards=3)
    a = p.parse_args()
    if a.calibrated:
        a.hidden, a.inner, a.layers, a.vocab, a.shards = 256, 256, 6, 500, 1
    recipes = CALIBRATED if a.calibrated else RECIPES
    rng = random.Random(a.seed)
    folder = tempfile.mkdtemp(prefix="nibble-kill-")
    kills = resumed = 0
    try:
        source = os.path.join(folder, "source")
        random_model.make(source, a)
        ids = os.path.join(folder, "ids.safetensors")
        write_ids(ids, rng, 8, 64, a.vocab)
        for number in range(a.rounds):
            recipe = [ids if word == "IDS" else word for word in recipes[number % len(recipes)]]
            whole, out = os.path.join(folder, f"whole{number % len(recipes)}"), os.path.join(folder, "out")

            def command(to, *more, threads=2):
                return [a.nibble, "quantize", source, "-o", to, "--max-shard-size", "20MB", "--quiet", "--threads", str(threads), *recipe, *more]

            if not os.path.exists(whole):
                begin = time.time()
                subprocess.run(command(whole), check=True)
                duration = time.time() - begin
            while not os.path.exists(out):
                begun = os.path.exists(out + ".partial") or os.path.exists(out + ".calibration")
                job = subprocess.Popen(command(out, "--resume", threads=rng.choice((1, 2, 3))), stderr=subprocess.PIPE, text=True)
                try:
                    job.wait(timeout=rng.uniform(0, 1.2 * duration))
                except subprocess.TimeoutExpired:
                    job.send_signal(signal.SIGKILL)
                    kills += 1
                error = job.communicate()[1]
                if job.returncode not in (0, -signal.SIGKILL):
                    sys.exit(f"round {number}: exit {job.returncode}: {error}")
                resumed += job.returncode == 0 and begun
            if content(out) != content(whole):
                a_, b_ = content(out), content(whole)
                sys.exit(f"round {number}: differs: {sorted(k for k in a_.keys() | b_.keys() if a_.get(k) != b_.get(k))}")
            shutil.rmtree(out)
    finally:
        shutil.rmtree(folder)
    print(f"{a.rounds} exports, {kills} kills, {resumed} finished by a resume: all equal to undisturbed runs")


if __name__ == "__main__":
    main()
