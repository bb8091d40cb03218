"""Runs `tools/qad-study` at a small size: `qad_study.py build/cpu/nibble`

A small model is trained on half a licence text. Distillation must end closer to its teacher than the rounding that it
started from. Results must equal those of `nibble eval`. A second run does nothing, and another study in the same folder
is refused. Every rounding method gives a row, in the expected order, and one format lies between BF16 and the coarser
one. Needs only Python's standard library.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NIBBLE = os.path.abspath(sys.argv[1])
SIZE = ["--steps", "100", "--batch", "4", "--sequence", "64", "--context", "64", "--chunks", "12", "--calib-tokens", "1024", "--learning-rate", "1e-4", "--threads", "2"]


def run(*command, status=0):
    ran = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    assert ran.returncode == status, (command, ran.returncode, ran.stdout, ran.stderr)
    return ran


def study(*more, status=0):
    return run(sys.executable, ROOT / "tools/qad-study", NIBBLE, "-o", "out", "--model", "run/model", "--text", "train.txt", "held-out.txt", "--methods", "maximum", "nibble_best", "qad", *SIZE, *more,
               status=status)


def texts():
    """Writes a text that does not change with this repository, because results are compared."""
    text = (ROOT / "LICENSE").read_text()
    pathlib.Path("train.txt").write_text(text[:8000])
    pathlib.Path("held-out.txt").write_text(text[8000:])


def teacher():
    start = pathlib.Path("start")
    start.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(ROOT / "tests/data/chat" / name, start / name)
    (start / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 272, "rms_norm_eps": 1e-05, "hidden_act": "silu", "max_position_embeddings": 512, "rope_theta": 10000.0,
        "tie_word_embeddings": True, "bos_token_id": 269, "eos_token_id": 271}))
    pathlib.Path("teacher.yaml").write_text(f"model: start\nrandom_start: true\noutput: run\nsteps: 300\nbatch: 8\nsequence: 64\ndata: {{text: train.txt}}\n"
                                            "optimizer: {learning_rate: 1e-2}\n")
    run(NIBBLE, "train", "teacher.yaml", "--quiet", "--threads", "2")


def main():
    texts()
    teacher()
    ran = study()
    results = json.loads(pathlib.Path("out/study.json").read_text())["results"]
    assert list(results) == ["maximum", "nibble_best", "qad-1"], results.keys()
    for name, r in results.items():
        assert r["kl"] > 0 and r["perplexity"] > 1 and 0 < r["same_top"] <= 1, (name, r)
        assert f"| {name} | {r['kl']:.4g} |" in ran.stdout, ran.stdout
    qad = results["qad-1"]
    assert qad["kl"] < 0.7 * results["maximum"]["kl"], results  # losses of single steps are too noisy
    report = json.loads(run(NIBBLE, "eval", "out/runs/qad-1/model-nvfp4", "--against", "run/model", "--text", "held-out.txt", "--context", 64, "--chunks", 12, "--json", "--quiet").stdout)
    found = [t["metrics"]["KL mean"]["value"] for c in report["checkpoints"] for t in c["tasks"] if "KL mean" in t["metrics"]]
    # the study stores the reference's log-probabilities rounded
    assert len(found) == 1 and abs(found[0] - qad["kl"]) < 0.01 * qad["kl"], (found, qad)
    before = pathlib.Path("out/study.json").stat().st_mtime_ns
    study()
    assert pathlib.Path("out/study.json").stat().st_mtime_ns == before
    refused = study("--steps", "101", status=1)
    assert "of another study" in refused.stderr, refused.stderr
    missing = run(sys.executable, ROOT / "tools/qad-study", NIBBLE, "-o", "other", "--model", "nowhere", "--methods", "maximum", status=1)
    assert "nowhere" in missing.stderr, missing.stderr


def rounding():
    """Runs everything that needs no training, on the two halves of a corpus's held-out text."""
    corpus = pathlib.Path("corpus")
    corpus.mkdir()
    (corpus / "held-out.txt").write_text(pathlib.Path("held-out.txt").read_text())
    command = [sys.executable, ROOT / "tools/qad-study", NIBBLE, "-o", "rounding", "--model", "run/model", "--corpus", corpus, "--rounding", *SIZE]
    ran = run(*command)
    halves = [pathlib.Path(f"rounding/text/{part}.txt").read_text() for part in ("train", "held-out")]
    assert "".join(halves) == (corpus / "held-out.txt").read_text() and min(map(len, halves)) > 1000, [len(h) for h in halves]
    kl = {name: r["kl"] for name, r in json.loads(pathlib.Path("rounding/study.json").read_text())["results"].items()}
    ways = ["maximum", "mse", "four_over_six", "local_hessian", "awq_lite", "gptq", "nibble_best"]
    assert list(kl) == [*ways, *(f"{w}_w4a4" for w in ways), "mxfp4"], list(kl)
    assert kl["nibble_best"] < kl["gptq"] < kl["maximum"] and kl["mse"] < kl["maximum"] < kl["mxfp4"], kl
    for way in ways:
        assert 0 < kl[way] < kl[f"{way}_w4a4"], (way, kl)
    assert len(set(kl.values())) == len(kl), kl  # no two rows use the same recipe
    rows = [line.split(" | ")[:2] for line in ran.stdout.splitlines() if line.startswith(("| NVFP4", "| MXFP4"))]
    assert [form for form, _ in rows] == ["| NVFP4 W4A16"] * 7 + ["| NVFP4 W4A4"] * 7 + ["| MXFP4 W4A16"], rows
    assert ran.stdout.endswith(pathlib.Path("rounding/table.md").read_text()), ran.stdout


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        main()
        rounding()
