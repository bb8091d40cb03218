"""The examples run and print what they promise."""

import subprocess
import sys

from conftest import ROOT

EXAMPLES = ROOT / "python/examples"


def run(name, *arguments):
    done = subprocess.run([sys.executable, EXAMPLES / name, *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def chat_model(folder):
    subprocess.run([sys.executable, ROOT / "tests/oracles/tiny_chat_model.py", folder], check=True)
    return folder


def test_real_fp4():
    assert "4.5" in run("real_fp4.py") and len((EXAMPLES / "real_fp4.py").read_text()) < 1000


def test_quantize_evaluate_serve(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n".join(f"Line {i} says hello to the world and the world says hello." for i in range(60)))
    out = run("quantize_evaluate_serve.py", chat_model(tmp_path / "model"), text, tmp_path / "out")
    assert "verified" in out and "perplexity" in out and (tmp_path / "out" / "config.json").exists()


def test_answers(tmp_path):
    assert "'The capital of France is' -> " in run("answers.py", chat_model(tmp_path / "model"))


def test_judge(tmp_path):
    out = run("judge.py", chat_model(tmp_path / "model"), tmp_path / "run")
    assert "step 1: reward" in out and (tmp_path / "run/model/config.json").exists()


def test_new_weights(tmp_path):
    before, after = run("new_weights.py", chat_model(tmp_path / "model")).splitlines()
    assert before.startswith("before: ") and after.startswith("after (negated): ") and before.split(": ")[1] != after.split(": ")[1]
