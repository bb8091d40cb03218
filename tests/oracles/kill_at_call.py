"""Kills `nibble` (SIGKILL) before its n-th call that changes a file, or makes that call fail (a full disk, no
descriptor left), for small jobs of quantize, convert, import, search, data, train, rl and eval. Restarted as the
program advises, every job must end with the bytes of an undisturbed run and leave nothing else. `kill_at_call.py
build/cpu/nibble build/cpu/tests/libkill_at.so [--all]`

Without --all it tests a fixed sample of n. Results depend on the number of calls only, never on time.
"""
import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import types

import random_model

HERE = os.path.dirname(os.path.abspath(__file__))
CHAT = os.path.join(HERE, "..", "data", "chat")
ENOSPC, EMFILE = 28, 24
# Fields with times, commands and measurements.
TIMES = {"timing", "command", "seconds", "made_at", "finished_at", "resumed_tensors", "tokens_per_second", "prompt_seconds", "generate_seconds",
         "tflops", "memory_gib"}


def without_times(value):
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if k not in TIMES and not k.endswith("_seconds")}
    return [without_times(v) for v in value] if isinstance(value, list) else value


def log_of(data):
    """Returns the steps of a run's log, without warnings, which mention the disturbance."""
    lines = [json.loads(line) for line in data.splitlines()]
    return [without_times(line) for line in lines[1:] if "warning" not in line]


def files_below(folder, ignored=(), logs=False):
    """Returns name -> content to compare for everything below `folder`. `ignored`: prefixes of names; `logs`: includes
    the steps of logs.
    """
    out = {}
    for root, folders, names in os.walk(folder):
        for name in names + folders:
            path = os.path.join(root, name)
            key = os.path.relpath(path, folder)
            if key.startswith(tuple(ignored)):
                continue
            if os.path.isdir(path):
                out[key + "/"] = ""
                continue
            with open(path, "rb") as f:
                data = f.read()
            if key.endswith(".json"):
                data = json.dumps(without_times(json.loads(data))).encode()
            elif logs and key.endswith("train.jsonl"):
                data = json.dumps(log_of(data)).encode()
            elif key.endswith((".html", ".jsonl")):
                data = b""  # contains times
            out[key] = hashlib.sha256(data).hexdigest()
    return out


class Job:
    """A job. `ignored`: prefixes of names that are not compared; `or_a_warning`: files whose failed write only gives a
    warning.
    """

    def __init__(self, name, words, may_resume=False, ignored=(), or_a_warning=()):
        self.name, self.words, self.may_resume, self.ignored, self.or_a_warning = name, words, may_resume, ignored, or_a_warning


class Runner:
    def __init__(self, nibble, library):
        self.nibble, self.library = nibble, library

    def run(self, job, folder, more=(), **environment):
        env = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "LD_PRELOAD": self.library}
        env.update({k: str(v) for k, v in environment.items()})
        return subprocess.run([self.nibble, *job.words, *more], cwd=folder, env=env, stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace")

    def finish(self, job, folder, what):
        """Repeats the command, with --resume if the job supports it, like a scheduler. The job may already be
        complete.
        """
        done = self.run(job, folder, ["--resume"] if job.may_resume else [])
        if done.returncode == 0 or "exists already" in done.stderr:
            return  # killed after the last step; the comparison below checks completeness
        sys.exit(f"{what}: the second start ended with {done.returncode}: {done.stderr.strip()}")


def sample(count, wanted, rng):
    """Chooses numbers of calls: the first and last ones, which create and publish files, and some of the others."""
    ends = set(range(1, 6)) | set(range(count - 5, count + 1))
    others = sorted(set(range(1, count + 1)) - ends)
    return sorted({n for n in ends if 1 <= n <= count} | set(rng.sample(others, min(wanted, len(others)))))


def make_inputs(folder, runner):
    a = types.SimpleNamespace(hidden=256, inner=256, layers=1, vocab=272, experts=0, shards=2, seed=1)
    source = os.path.join(folder, "source")
    random_model.make(source, a)
    shutil.copy(os.path.join(CHAT, "tokenizer_config.json"), source)
    with open(os.path.join(CHAT, "tokenizer.json")) as f:
        tokenizer = json.load(f)
    # GPT-2's pre-tokenizer, which llama.cpp knows by name.
    tokenizer["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    with open(os.path.join(source, "tokenizer.json"), "w") as f:
        json.dump(tokenizer, f)
    with open(os.path.join(folder, "text.txt"), "w") as f:
        f.write("The quick brown fox jumps over the lazy dog. " * 60)
    shutil.copytree(CHAT, os.path.join(folder, "chat"))
    with open(os.path.join(folder, "train.yaml"), "w") as f:
        f.write("model: ../chat\nrandom_start: true\nsteps: 5\nbatch: 2\nsequence: 16\ndata: {folder: ../tokens}\n"
                "saving: {every: 2, keep: 1}\nvalidation: {batches: 1}\nprecision: nvfp4_w4a16\nexport: {format: nvfp4}\n")
    with open(os.path.join(folder, "rows.jsonl"), "w") as f:
        f.write("".join('{"question": "%d + 1", "answer": %d}\n' % (i, i + 1) for i in range(7)))
    for name, grpo, loss in (("rl", "", ""), ("rl-async", ", async_grpo: {enabled: true, tokens_per_round: 3}", ", use_importance_sampling_correction: true")):
        with open(os.path.join(folder, name + ".yaml"), "w") as f:
            f.write("policy: {model_name: ../chat, precision: nvfp4_w4a16, max_total_sequence_length: 40, optimizer: {lr: 0.003}, generation: {max_new_tokens: 10}}\n"
                    "grpo: {num_prompts_per_step: 2, num_generations_per_prompt: 2, max_num_steps: 4, val_period: 2, max_val_samples: 3%s}\n"
                    "loss_fn: {reference_policy_kl_penalty: 0%s}\n"
                    "data: {train: ../rows.jsonl, validation: ../rows.jsonl, input_key: question, output_key: answer, chat: false}\n"
                    "checkpointing: {save_period: 2, keep_top_k: 1}\n%s" % (grpo, loss, "" if grpo else "export: {format: nvfp4}\n"))
    for words in (["data", "build", "text.txt", "-o", "tokens", "--tokenizer", "chat", "--val", "0.1", "--val-by", "tails", "--quiet"],
                  ["quantize", "source", "-o", "quantized", "--recipe", "w4a16_nvfp4", "--quiet"],
                  ["quantize", "source", "-o", "quantized.gguf", "--format", "gguf", "--recipe", "w4a16_nvfp4", "--quiet"]):
        done = runner.run(Job("inputs", words), folder)
        if done.returncode != 0:
            sys.exit(f"cannot create the inputs: {done.stderr}")


def jobs():
    small = ["--threads", "1"]
    calib = ["--calib", "../text.txt", "--calib-tokens", "64", "--calib-seq", "32"]
    return [
        Job("quantize", ["quantize", "../source", "-o", "out", "--recipe", "w4a16_nvfp4", "--max-shard-size", "200kB", "--quiet", *small], True),
        Job("quantize to GGUF", ["quantize", "../source", "-o", "out.gguf", "--format", "gguf", "--recipe", "w4a16_nvfp4", "--quiet", *small], True),
        Job("quantize with calibration", ["quantize", "../source", "-o", "out", "--recipe", "w4a16_nvfp4_gptq", "--quiet", *calib, *small], True),
        Job("convert", ["convert", "../quantized", "-o", "out", "--format", "compressed-tensors", "--quiet", *small]),
        Job("import", ["import", "../quantized.gguf", "-o", "out", "--quiet", *small]),
        Job("search", ["search", "../chat", "-o", "out.yaml", "--bits", "6", *calib, *small]),
        Job("data", ["data", "build", "../text.txt", "-o", "out", "--tokenizer", "../chat", "--val", "0.2", "--val-by", "tails", "--quiet", *small]),
        # Each process writes an event file with times.
        Job("train", ["train", "../train.yaml", "-o", "out", "--quiet", *small], True, ("out/events/",)),
        Job("rl", ["rl", "../rl.yaml", "-o", "out", "--quiet", *small], True, ("out/events/",), ("out/samples.json",)),
        Job("rl with rollouts that outlive a step", ["rl", "../rl-async.yaml", "-o", "out", "--quiet", *small], True, ("out/events/",), ("out/samples.json",)),
        Job("eval", ["eval", "../chat", "--text", "../text.txt", "--context", "32", "--chunks", "4", "-o", "out", *small]),
    ]


def check(runner, job, root, wanted, rng):
    whole = os.path.join(root, "whole")
    os.mkdir(whole)
    counter = os.path.join(root, "count")
    done = runner.run(job, whole, COUNT_CALLS=counter)
    if done.returncode != 0:
        sys.exit(f"{job.name}: ends without a disturbance with {done.returncode}: {done.stderr}")
    with open(counter) as f:
        count = int(f.read())
    tried = kills = 0
    numbers = range(1, count + 1) if wanted is None else sample(count, wanted, rng)
    for n in numbers:
        for how, environment in (("killed", {"KILL_AT": n}), ("no space", {"FAIL_AT": n, "FAIL_ERRNO": ENOSPC}), ("no descriptor", {"FAIL_AT": n, "FAIL_ERRNO": EMFILE})):
            if how != "killed" and wanted is not None and n % 3:
                continue
            what = f"{job.name}, {how} at call {n} of {count}"
            folder = os.path.join(root, "work")
            os.mkdir(folder)
            first = runner.run(job, folder, **environment)
            if first.returncode not in ((0, -signal.SIGKILL) if how == "killed" else (0, 1)):
                sys.exit(f"{what}: ended with {first.returncode}: {first.stderr}")
            kills += first.returncode == -signal.SIGKILL
            if first.returncode != 0:
                runner.finish(job, folder, what)
            # A failed write to a log is reported and the job continues, so only killed runs have equal logs.
            same_log, ignored = how == "killed", (*job.ignored, *(() if how == "killed" else job.or_a_warning))
            have, want = files_below(folder, ignored, same_log), files_below(whole, ignored, same_log)
            if have != want:
                names = sorted(k for k in have.keys() | want.keys() if have.get(k) != want.get(k))
                sys.exit(f"{what}: differs from an undisturbed run in {names}; the first run said: {first.stderr.strip()}")
            shutil.rmtree(folder)
            tried += 1
    shutil.rmtree(whole)
    if kills == 0:
        sys.exit(f"{job.name}: nothing was killed: is {runner.library} loaded?")
    print(f"{job.name}: {count} calls, {tried} disturbed runs, {kills} of them killed: all ended with the same bytes", flush=True)


def check_shrinking(runner, root, wanted, rng):
    """A source that is truncated while it is read gives one line that names it and publishes nothing, whichever call
    comes next; never a signal.
    """
    for name, words, source, shard in (
            ("quantize", ["quantize", "source", "-o", "out", "--recipe", "w4a16_nvfp4", "--quiet"], "source", "model-00002-of-00002.safetensors"),
            ("convert", ["convert", "quantized", "-o", "out", "--format", "compressed-tensors", "--quiet"], "quantized", "model.safetensors"),
            ("import", ["import", "quantized.gguf", "-o", "out", "--quiet"], "quantized.gguf", "")):
        job = Job(name, [*words, "--threads", "1"])
        counter, count, refused = os.path.join(root, "count"), None, 0
        numbers = [0]
        while numbers:
            n = numbers.pop(0)
            folder = os.path.join(root, "work")
            os.mkdir(folder)
            copy = os.path.join(folder, source)
            (shutil.copytree if os.path.isdir(os.path.join(root, source)) else shutil.copy)(os.path.join(root, source), copy)
            weights = os.path.join(copy, shard) if shard else copy
            done = runner.run(job, folder, COUNT_CALLS=counter, SHRINK_AT=n, SHRINK_FILE=weights)
            what = f"{name}, its source cut off at call {n} of {count}: ended with {done.returncode}: {done.stderr.strip()}"
            published = os.path.exists(os.path.join(folder, "out"))
            if count is None:
                with open(counter) as f:
                    count = int(f.read())
                numbers = list(range(1, count + 1)) if wanted is None else sample(count, wanted, rng)
            if done.returncode not in (0, 1) or published != (done.returncode == 0):
                sys.exit(what)
            if done.returncode == 1:
                refused += 1
                if os.path.basename(weights) not in done.stderr or len(done.stderr.splitlines()) != 1:
                    sys.exit(what)
            shutil.rmtree(folder)
        if refused == 0:
            sys.exit(f"{name}: no truncated source was noticed")
        print(f"{name}: source truncated while it was read: {refused} errors named it, nothing was published", flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("nibble")
    p.add_argument("library")
    p.add_argument("--all", action="store_true", help="every call, not a sample")
    p.add_argument("--sample", type=int, default=6, help="calls between the first and the last five")
    p.add_argument("--job", help="only jobs whose name begins so; shrink: only sources that are cut off")
    a = p.parse_args()
    runner = Runner(os.path.abspath(a.nibble), os.path.abspath(a.library))
    rng = random.Random(1)
    root = tempfile.mkdtemp(prefix="nibble-kill-at-")
    try:
        make_inputs(root, runner)
        for job in jobs():
            if not a.job or job.name.startswith(a.job):
                check(runner, job, root, None if a.all else a.sample, rng)
        if not a.job or a.job == "shrink":
            check_shrinking(runner, root, None if a.all else a.sample, rng)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
