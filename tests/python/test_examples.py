"""The examples run and print what they promise."""

import ast
import json
import os
import subprocess
import sys

import nibble
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


def shown(cells):
    """Runs the code cells of a notebook in one namespace. Returns what notebooks show of the last expression of each."""
    names, results = {"__name__": "__main__"}, []
    for cell in cells:
        body = ast.parse(cell)
        last = body.body.pop() if body.body and isinstance(body.body[-1], ast.Expr) else None
        exec(compile(body, "cell", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
            if value is not None:
                results.append(value._repr_html_() if hasattr(value, "_repr_html_") else repr(value))
    return results


def test_the_notebook_finds_the_bits(tmp_path, monkeypatch, capsys):
    nibble.quantize_checkpoint(chat_model(tmp_path / "model"), tmp_path / "small", "w4a16_nvfp4")
    monkeypatch.setitem(os.environ, "NIBBLE_MODEL", str(tmp_path / "small"))
    notebook = json.loads((EXAMPLES / "bits_of_a_checkpoint.ipynb").read_text())
    cells = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]
    assert not any(c.get("outputs") for c in notebook["cells"])
    results = shown(cells)
    printed = capsys.readouterr().out
    assert any("<" in r and "nvfp4" in r for r in results), results
    assert "4.5" in printed and "weight_scale_2" in printed and "dB" in printed
