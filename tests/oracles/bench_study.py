"""Runs tools/bench-study on a small model: `bench_study.py build/cpu/nibble`

The study contains the results of its steps when they run alone. Running it again does nothing and gives the same bytes.
A killed study resumes. Problems that can be detected are refused before the first step. Needs only Python's standard
library.
"""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "..", "data", "chat")
NIBBLE = os.path.abspath(sys.argv[1])
STUDY = [os.path.join(HERE, "..", "..", "tools", "bench-study"), NIBBLE]
LOADS = ["--concurrency", "1,3", "--isl", "12", "--osl", "5", "--rounds", "1"]


def run(*words):
    ran = subprocess.run([*map(str, words)], capture_output=True, text=True)
    assert ran.returncode == 0, (words, ran.returncode, ran.stderr)
    return ran


def check(what, got, want):
    assert got == want, f"{what}: {got!r} is not {want!r}"


def study(out, *more):
    return [*STUDY, MODEL, "-o", out, *LOADS, "--text", "text", "--kv-memory", "16M", *more]


def test_a_study_is_what_its_steps_say():
    ran = run(*study("out", "--json"))
    found = json.loads(ran.stdout)
    check("study.json", json.loads(pathlib.Path("out/study.json").read_text()), found)
    check("names", [c["name"] for c in found["checkpoints"]], ["bf16", "w4a16_nvfp4", "fp8_per_channel_per_token"])
    weights = [c["weight_bytes"] for c in found["checkpoints"]]
    assert weights[0] > weights[2] > weights[1] > 0, weights
    for c in found["checkpoints"]:
        check("loads", [(x["concurrency"], x["requests"], x["failed"]) for x in c["loads"]], [(1, 16, 0), (3, 16, 0)])
        assert all(x["output_tokens_per_second"] > 0 for x in c["loads"]) and c["load_seconds"] > 0 and c["memory_bytes"] > 1 << 20
        alone = json.loads(run(NIBBLE, "eval", c["path"], "--text", "text", "--json", "--quiet").stdout)["checkpoints"][0]["tasks"][0]
        check("perplexity", c["tasks"][0]["metrics"]["perplexity"]["value"], alone["metrics"]["perplexity"]["value"])
    assert found["checkpoints"][1]["tasks"][0]["metrics"]["KL mean"]["value"] > 0, "KL divergence from the source"
    page = pathlib.Path("out/study.html").read_text()
    assert not re.search(r"(src|href)=\"(https?:)?//", page), "the page asks for something else"
    for c in found["checkpoints"]:
        assert page.count(c["name"]) >= 4, f"{c['name']} is not in every part of the page"

    # A second run does nothing and changes nothing.
    before = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in pathlib.Path("out/models").rglob("*") if p.is_file()}
    again = run(*study("out"))
    assert "bench-study:" not in again.stderr, again.stderr
    check("models", {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in before}, before)
    check("study.json", json.loads(pathlib.Path("out/study.json").read_text()), found)
    for head in ("weights", "memory", "perplexity", "KL mean", "bf16"):
        assert head in again.stdout, again.stdout
    # One row per number of clients, compared with the source model.
    rows = {line.split()[0]: line for line in again.stdout.splitlines() if re.match(r" +\d+  ", line)}
    check("clients", list(rows), ["1", "3"])
    for i, clients in enumerate(rows):
        rates = [c["loads"][i]["output_tokens_per_second"] for c in found["checkpoints"]]
        check("ratios", re.findall(r"x(\S+)", rows[clients]), [f"{rate / rates[0]:.2f}" for rate in rates])
        for rate in rates:
            assert page.count(f">{rate:.1f}</td>") >= 1 and page.count(f">{rate / rates[0]:.2f}</td>") >= 1, (rate, rates[0])
    assert re.search(r", \d+ threads?</span>", page), "the processor is not named"
    # With another option only the affected steps run.
    other = run(*study("out", "--limit", "7"))
    check("steps", re.findall("bench-study: (.*)", other.stderr), ["eval"])


def test_a_killed_study_goes_on():
    steps = pathlib.Path("killed/steps")
    child = subprocess.Popen(study("killed"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    while not (steps / "bf16.serve.json").exists():
        assert child.poll() is None, "ended before it was killed"
        time.sleep(0.01)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    ran = run(*study("killed"))
    done = re.findall("bench-study: (.*)", ran.stderr)
    assert "bf16.serve" not in done and "w4a16_nvfp4.quantize" not in done and done[-1] == "eval", done


def test_what_is_refused_before_the_first_step():
    quantized = "quantized"
    run(NIBBLE, "quantize", MODEL, "-o", quantized, "--recipe", "w4a16_nvfp4", "--quiet")
    for words, said in [
        (study("no", "-r", "nvfp4"), "nvfp4: the recipe needs activations: give --calib TEXT"),
        (study("no", "-r", "nosuch"), "nosuch"),
        (study("no", "--lambada", "absent"), "absent: cannot be read"),
        (study("no", "--checkpoint", quantized, "--checkpoint", quantized), "two checkpoints are called 'quantized'"),
        ([*STUDY, quantized, "-o", "no"], "a study begins with BF16"),
        ([*STUDY, os.path.join(HERE, "..", "data", "golden", "gguf", "llama-mixed.gguf"), "-o", "no"], "a study begins with BF16, which `nibble import`"),
        (study("no", "--kv-memory", "16Q"), "--kv-memory: '16Q' is not a size"),
        ([*STUDY, "absent", "-o", "no"], "absent"),
        (study(os.path.join(MODEL, "no")), "lies in the source"),
    ]:
        ran = subprocess.run(words, capture_output=True, text=True)
        assert ran.returncode in (1, 2) and said in ran.stderr and ran.stderr.count("\n") == 1, (words, ran.returncode, ran.stderr)
        assert not os.path.exists("no") and not os.path.exists(os.path.join(MODEL, "no")), words


def main():
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            folder = tempfile.mkdtemp(prefix="nibble-study-")
            os.chdir(folder)
            try:
                pathlib.Path("text").write_text("The mill stands by the river. Its wheel turns when the water is high. " * 40)
                test()
                print(f"{name}: ok", flush=True)
            finally:
                os.chdir("/")
                shutil.rmtree(folder)


if __name__ == "__main__":
    main()
