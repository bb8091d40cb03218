"""Tests `nibble quantize` by several ranks: every file equals that of one process.

    quantize_ranks.py NIBBLE [KILL_AT_LIBRARY] [--all]

Ranks are plain processes with NIBBLE_RANK and NIBBLE_RANKS. --all: every family of the archive, every number of ranks,
and 50 kills. KILL_AT_LIBRARY (tests/preload/kill_at.cpp) ends a rank before its n-th change of a file, or lets that
change fail. Not compared: times in the reports.
"""
import glob
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time

import random_model
from kill_resume import without_times

DATA = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "data"))
SAMPLE = ("qwen3_moe", "gpt_oss", "deepseek_v3", "nemotron_h", "qwen3_next")
SMALL_FILES = ["--max-shard-size", "40KB"]
TIMEOUT = 120


def content(folder):
    """Returns the hash of every file, with the times of the reports removed."""
    found = {}
    for root, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)
            with open(path, "rb") as file:
                data = file.read()
            if name == "nibble-report.json" or name.endswith(".nibble-report.json"):
                data = json.dumps(without_times(json.loads(data))).encode()
            elif name.endswith(".html"):
                data = b""
            found[os.path.relpath(path, folder)] = hashlib.sha256(data).hexdigest()
    return found


class Ranks:
    def __init__(self, nibble, library):
        self.nibble, self.library = nibble, library
        self.folder = tempfile.mkdtemp(prefix="nibble-quantize-ranks-")
        self.rng = random.Random(7)

    def place(self, name):
        """Returns an empty folder. Every run has its own, and the same relative output, so that command lines are equal."""
        path = os.path.join(self.folder, name)
        shutil.rmtree(path, ignore_errors=True)
        os.makedirs(path)
        return path

    def start(self, place, rank, ranks, arguments, **variables):
        own = dict(os.environ, NIBBLE_RANK=str(rank), NIBBLE_RANKS=str(ranks), **variables) if ranks else dict(os.environ, **variables)
        return subprocess.Popen([self.nibble, "quantize", *arguments], cwd=place, env=own, stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE, text=True)

    def end(self, process, *statuses):
        error = process.communicate(timeout=TIMEOUT)[1]
        assert process.returncode in statuses, f"{process.args}: exit {process.returncode}, not {statuses}: {error}"
        return error

    def alone(self, place, arguments, status=0, **variables):
        return self.end(self.start(place, 0, 0, arguments, **variables), status)

    def together(self, place, ranks, arguments):
        for process in [self.start(place, rank, ranks, arguments) for rank in reversed(range(ranks))]:
            self.end(process, 0)

    def same(self, place, expected, what):
        left = [name for name in os.listdir(place) if ".partial" in name]
        assert not left, f"{what}: left {left}"
        got = content(place)
        assert got == expected, f"{what}: differs: {sorted(k for k in got.keys() | expected.keys() if got.get(k) != expected.get(k))}"

    def degrees(self, what, arguments, degrees):
        whole = self.place("whole")
        self.alone(whole, arguments)
        expected = content(whole)
        for ranks in degrees:
            place = self.place("ranks")
            self.together(place, ranks, arguments)
            self.same(place, expected, f"{what}, {ranks} ranks")
        return expected


def families(folder, names):
    with tarfile.open(os.path.join(DATA, "golden", "families.tar.gz")) as archive:
        archive.extractall(folder, filter="data")
    for name in os.listdir(os.path.join(DATA, "golden", "models")):
        shutil.copytree(os.path.join(DATA, "golden", "models", name), os.path.join(folder, name), dirs_exist_ok=True)
    for name in os.listdir(os.path.join(DATA, "golden", "families")):
        if os.path.exists(os.path.join(DATA, "golden", "families", name, "model.safetensors")):
            shutil.copytree(os.path.join(DATA, "golden", "families", name), os.path.join(folder, name), dirs_exist_ok=True)
    found = sorted(n for n in os.listdir(folder) if os.path.exists(os.path.join(folder, n, "model.safetensors")))
    return [n for n in found if names is None or n in names]


def every_family(runs, everything):
    folder = os.path.join(runs.folder, "families")
    os.makedirs(folder)
    names = families(folder, None if everything else SAMPLE)
    assert len(names) >= len(SAMPLE), names
    for number, name in enumerate(names):
        arguments = [os.path.join(folder, name), "-o", "out", "--recipe", "nvfp4_four_over_six", "--weights-only", "--threads", "1", *SMALL_FILES]
        runs.degrees(name, arguments, (2, 3, 4, 8) if everything else ((2, 3, 4, 8)[number % 4],))
    print(f"{len(names)} families: the bytes of one process")


def every_recipe(runs, source, everything):
    small = ["--threads", "1", "--max-shard-size", "300KB"]
    rows = [["--recipe", "nvfp4", "--input-scales", "0.02", "--kv", "fp8_cast"], ["--recipe", "fp8", "--input-scales", "0.02", "--format", "compressed-tensors"],
            ["--recipe", "w4a16_nvfp4", "--arithmetic", "true"], ["--recipe", "mxfp4", "--compat", "none"], ["--recipe", "fp8_per_channel_per_token"]]
    for row in rows if everything else rows[:2]:
        runs.degrees(" ".join(row), [source, "-o", "out", *row, *small], (1, 2, 3, 4, 8) if everything else (3,))
    gguf = ["-o", "out.gguf", "--recipe", "w4a16_nvfp4", "--threads", "1"]
    runs.degrees("a GGUF output", [os.path.join(DATA, "golden", "gguf", "llama-mixed.gguf"), "--requantize", *gguf], (2,))
    runs.degrees("a quantized source", [os.path.join(DATA, "golden", "gguf", "llama-mixed.gguf"), "-o", "out", "--requantize", "--recipe", "w4a16_nvfp4", *SMALL_FILES], (3,))
    print("recipes, dialects and sources: the bytes of one process")


CALIBRATED = ("nvfp4", "fp8", "w4a16_nvfp4_local_hessian", "w4a16_nvfp4_gptq", "nvfp4_gptq", "w4a16_nvfp4_nibble_best", "nvfp4_nibble_best",
              "w4a16_nvfp4_awq_lite", "nvfp4_awq_lite")


def calibrated(runs, everything):
    """Calibrates by ranks, which divide the blocks. In every second run, one rank is killed on the way."""
    folder = os.path.join(runs.folder, "calibrated")
    os.makedirs(folder)
    rng, killed = random.Random(11), 0
    names = families(folder, None if everything else ("qwen3_moe",))
    for name in names:
        with open(os.path.join(folder, name, "config.json")) as file:
            vocabulary = json.load(file).get("vocab_size", 64)
        texts = os.path.join(folder, f"{name}.safetensors")
        write_ids(texts, rng, 90, 64, min(vocabulary, 64))  # two batches
        for recipe in CALIBRATED if everything else ("nvfp4", "w4a16_nvfp4_local_hessian", "nvfp4_gptq", "nvfp4_nibble_best", "nvfp4_awq_lite"):
            arguments = [os.path.join(folder, name), "-o", "out", "--recipe", recipe, "--calib", texts, "--calib-gradients", "200", "--threads", "1", "--rank-timeout", "5", *SMALL_FILES]
            whole = runs.place("whole")
            alone = runs.start(whole, 0, 0, arguments)
            error = alone.communicate(timeout=TIMEOUT)[1]
            if alone.returncode:
                assert everything and error, f"{name}, {recipe}: {error}"
                continue  # the recipe matches nothing of this family
            expected = content(whole)
            for ranks in (2, 3, 4) if everything else (3,):
                place = runs.place("ranks")
                processes = [runs.start(place, rank, ranks, arguments) for rank in range(ranks)]
                struck = rng.random() < 0.5
                if struck:
                    time.sleep(rng.uniform(0.1, 0.6))
                    processes[-1].send_signal(signal.SIGKILL)
                    killed += 1
                for process in processes:
                    runs.end(process, 0, 1, -signal.SIGKILL)
                if not os.path.exists(os.path.join(place, "out")):  # the rank was killed before the ranks had met
                    runs.together(place, ranks, arguments)
                elif struck:  # finds the output, and removes what a rank left that was killed after it was published
                    runs.end(runs.start(place, 0, 2, arguments), 0)
                runs.same(place, expected, f"{name}, {recipe}, {ranks} ranks")
    print(f"{len(names)} families, calibrated, {killed} ranks killed: the bytes of one process")


def write_ids(path, rng, sequences, tokens, vocabulary):
    """Writes token ids as a .safetensors file with input_ids, I64 [sequences, tokens]."""
    data = b"".join(rng.randrange(vocabulary).to_bytes(8, "little") for _ in range(sequences * tokens))
    header = json.dumps({"input_ids": {"dtype": "I64", "shape": [sequences, tokens], "data_offsets": [0, len(data)]}}).encode()
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header + data)


def kills(runs, source, rounds):
    """Kills random ranks at random times, then starts another number of ranks, and at the end perhaps one process."""
    arguments = [source, "-o", "out", "--recipe", "nvfp4_four_over_six", "--weights-only", "--threads", "1", "--max-shard-size", "300KB", "--rank-timeout", "2"]
    whole = runs.place("whole")
    begin = time.time()
    runs.alone(whole, arguments)
    duration = time.time() - begin
    expected, killed = content(whole), 0
    resume = runs.place("resume")
    runs.alone(resume, [*arguments, "--resume"])
    resumed = content(resume)
    for number in range(rounds):
        place = runs.place("killed")
        one_at_last = number % 3 == 2
        for attempt in range(20):
            ranks = runs.rng.choice((2, 3, 4))
            processes = [runs.start(place, rank, ranks, arguments) for rank in range(ranks)]
            victims = processes if runs.rng.random() < 0.5 else processes[: runs.rng.randrange(1, ranks)]
            time.sleep(runs.rng.uniform(0, 1.5 * duration))
            for process in victims:
                process.send_signal(signal.SIGKILL)
            statuses = []
            for process in processes:  # 1: another rank was killed before the ranks had met
                runs.end(process, 0, 1, -signal.SIGKILL)
                statuses.append(process.returncode)
            killed += statuses.count(-signal.SIGKILL)
            if 0 in statuses:
                break  # the survivors have finished
            if one_at_last and not os.path.exists(os.path.join(place, "out")):
                runs.alone(place, [*arguments, "--resume"])
                break
        else:
            runs.together(place, 3, arguments)
        with open(os.path.join(place, "out", "nibble.json")) as file:
            by_one = "--resume" in json.load(file)["command"]
        if not by_one:  # finds the output, and removes what a rank left that was killed after it was published
            runs.end(runs.start(place, 0, 2, arguments), 0)
        runs.same(place, resumed if by_one else expected, f"round {number}")
    print(f"{rounds} jobs with {killed} killed ranks: the bytes of one process")


def faults(runs, source):
    arguments = [source, "-o", "out", "--recipe", "nvfp4", "--weights-only", "--threads", "1", "--max-shard-size", "300KB", "--rank-timeout", "2"]
    whole = runs.place("whole")
    runs.alone(whole, arguments)
    expected = content(whole)
    if runs.library:
        for what, variables in (("a full disk", lambda n: {"FAIL_AT": n, "FAIL_ERRNO": "28"}), ("a kill", lambda n: {"KILL_AT": n})):
            struck = 0
            for n in ("4", "9", "14", "19", "25", "33", "45", "60"):
                place = runs.place("fault")
                first = runs.start(place, 1, 2, arguments, LD_PRELOAD=runs.library, **variables(n))
                second = runs.start(place, 0, 2, arguments)
                error = runs.end(first, 0, 1, -signal.SIGKILL)
                if first.returncode == 1:
                    assert "No space left on device" in error and error.count("\n") == 1, error
                struck += first.returncode != 0
                if runs.end(second, 0, 1) and second.returncode:  # the first rank failed before the second saw it
                    runs.together(place, 2, arguments)
                runs.same(place, expected, f"{what} at call {n}")
            assert struck >= 4, f"{what}: only {struck} ranks were struck"
        print("a full disk or a kill at any call of one rank: the others finish")

    place = runs.place("left")
    runs.together(place, 2, arguments)
    with open(os.path.join(place, "out.partial.lock"), "w") as file:
        file.write("1")  # a rank that is killed after it has published leaves this file
    runs.end(runs.start(place, 0, 2, arguments), 0)
    runs.same(place, expected, "a lock file of a killed rank")

    for _ in range(20):
        place = runs.place("slow")
        processes = [runs.start(place, rank, 2, arguments) for rank in range(2)]
        while processes[0].poll() is None and not glob.glob(os.path.join(place, "out.partial.ranks", "*.jsonl")):
            time.sleep(0.002)
        if processes[0].poll() is None:
            break
        for process in processes:  # it was faster than this test
            runs.end(process, 0)
    processes[0].send_signal(signal.SIGSTOP)
    runs.end(processes[1], 0)
    runs.same(place, expected, "a rank that stands still")
    processes[0].send_signal(signal.SIGCONT)
    runs.end(processes[0], 0)
    runs.same(place, expected, "a rank that continues too late")
    print("a rank that stands still: its work is taken over")


def refusals(runs, source):
    arguments = [source, "-o", "out", "--recipe", "nvfp4", "--weights-only", "--threads", "1", "--max-shard-size", "300KB", "--rank-timeout", "1"]

    def refused(error, *words):
        assert error.count("\n") == 1 and all(w in error for w in words), error

    place = runs.place("refused")
    refused(runs.end(runs.start(place, 1, 2, arguments), 1, 2), "rank 0 of 2 has not appeared", "share")
    place = runs.place("refused")
    other = [*arguments[:3], "--recipe", "w4a16_nvfp4", *arguments[5:]]
    processes = [runs.start(place, 0, 2, arguments), runs.start(place, 1, 2, other)]
    for process in processes:
        assert "recipe" in runs.end(process, 1, 2)
    place = runs.place("refused")
    first = runs.start(place, 0, 3, [*arguments[:-1], "60"])
    while not os.path.exists(os.path.join(place, "out.partial.ranks", "rank-0.0")):
        time.sleep(0.01)
    refused(runs.end(runs.start(place, 0, 3, arguments), 1, 2), "rank 0", "is running already")
    first.kill()
    first.communicate()
    search = subprocess.run([runs.nibble, "search", source, "-o", os.path.join(place, "r.yaml"), "--bits", "4.8", "--calib", os.path.join(source, "config.json")], capture_output=True, text=True,
                            env=dict(os.environ, NIBBLE_RANK="0", NIBBLE_RANKS="2"))
    assert search.returncode != 0
    refused(search.stderr, "one process")
    place = runs.place("refused")
    first = runs.start(place, 0, 2, [*arguments[:-1], "60"])
    while not os.path.exists(os.path.join(place, "out.partial.ranks", "rank-0.0")):
        time.sleep(0.01)
    refused(runs.alone(place, [*arguments, "--resume", "--quiet"], 1), "rank 0", "is writing it")
    first.kill()
    first.communicate()
    place = runs.place("refused")
    runs.alone(place, arguments)
    refused(runs.end(runs.start(place, 0, 2, [*arguments, "--strict"]), 1, 2), "exists already")
    print("impossible requests: one line each")


def main():
    p = random_model.parser()
    p.add_argument("nibble")
    p.add_argument("library", nargs="?")
    p.add_argument("--all", action="store_true")
    p.set_defaults(hidden=256, inner=512, layers=6, vocab=2000, shards=2)
    a = p.parse_args()
    runs = Ranks(os.path.abspath(a.nibble), a.library and os.path.abspath(a.library))
    try:
        source = os.path.join(runs.folder, "source")
        random_model.make(source, a)
        every_family(runs, a.all)
        every_recipe(runs, source, a.all)
        calibrated(runs, a.all)
        kills(runs, source, 50 if a.all else 4)
        faults(runs, source)
        refusals(runs, source)
    finally:
        shutil.rmtree(runs.folder)


if __name__ == "__main__":
    main()
