"""`tools/train-study` at tiny size: `train_study.py build/cpu/nibble`

Its gaps are differences of the runs it holds, its page draws every recipe with the spread of seeds and the course of validation, the same command again trains nothing. Needs Python's own library only.
"""
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools" / "train-study"
NIBBLE = os.path.abspath(sys.argv[1])
NAMES = ["nvfp4", "nvfp4 forward alone", "nvfp4 backward alone"]
SMALL = ["--steps", "15", "--seeds", "2", "--layers", "1", "--hidden", "64", "--batch", "2", "--sequence", "48", "--chunks", "4", "--validation", "1", "--characters", "60000", "--threads", "2"]


def run(*more, status=0):
    ran = subprocess.run([str(TOOL), NIBBLE, "-o", "out", *SMALL, "--recipes", *NAMES, *more], capture_output=True, text=True)
    assert ran.returncode == status, (ran.returncode, ran.stdout, ran.stderr)
    return ran


def check(what, got, want):
    assert got == want, f"{what}: {got!r} is not {want!r}"


def every_recipe():
    """What the tool makes without names, and all parts: each trains, is served in its format and evaluated."""
    options = ["--ablation", "--steps", "2", "--seeds", "1", "--layers", "1", "--hidden", "64", "--batch", "8", "--sequence", "512", "--chunks", "1", "--validation", "1", "--characters", "60000", "--threads", "2"]
    ran = subprocess.run([str(TOOL), NIBBLE, "-o", "every", *options], capture_output=True, text=True)
    assert ran.returncode == 0, (ran.stdout, ran.stderr)
    study = json.loads(pathlib.Path("every/study.json").read_text())
    check("recipes", len(study["runs"]), 19)
    for name, runs in study["runs"].items():
        assert all(0 < runs["1"][kind] < 12 for kind in ("bf16", "served", "training")), (name, runs)


def main():
    refused = run("--page", status=2)
    assert "has no run of bf16" in refused.stderr, refused.stderr
    ran = run()
    study = json.loads(pathlib.Path("out/study.json").read_text())
    check("runs", {n: sorted(r) for n, r in study["runs"].items()}, {n: ["1", "2"] for n in ["bf16", *NAMES]})
    for name in NAMES:
        for kind in ("bf16", "served", "training"):
            gaps = {s: study["runs"][name][s][kind] - study["runs"]["bf16"][s][kind] for s in ("1", "2")}
            check(f"{name}, {kind}", study["gaps"][name][kind], gaps)
            mean, spread = statistics.mean(gaps.values()), statistics.stdev(gaps.values())
            cell = f"{mean:+.4f} ± {spread:.4f}"
            assert cell in ran.stdout, (name, kind, cell, ran.stdout)
            assert cell in pathlib.Path("out/study.html").read_text(), (name, kind, cell)
    for runs in study["runs"].values():
        for r in runs.values():
            check("validations", [step for step, _ in r["curve"]], list(range(1, 16)))
            check("the last one", r["curve"][-1][1], r["training"])
    # The two passes are rounded in turn, and neither is the whole recipe nor bf16.
    losses = {n: study["runs"][n]["1"]["training"] for n in ["bf16", *NAMES]}
    check("four ways to train", len(set(losses.values())), 4)
    page = pathlib.Path("out/study.html").read_text()
    assert not re.search(r"(src|href)=\"(https?:)?//", page) and "<script" not in page, "the page stands alone"
    for name in NAMES: assert page.count(name) >= 5, (name, page.count(name))
    check("charts", page.count("<svg viewBox"), 5)  # of recipes and of parts: gaps, gaps over steps; validation
    logs = {p: p.stat().st_mtime_ns for p in pathlib.Path("out/runs").rglob("train.jsonl")}
    again = run()
    check("nothing was trained again", {p: p.stat().st_mtime_ns for p in logs}, logs)
    check("the same table", again.stdout, ran.stdout[ran.stdout.index("| recipe"):])
    pathlib.Path("out/study.html").unlink()
    check("--page prints nothing", run("--page").stdout, "")
    assert pathlib.Path("out/study.html").read_text().count("<svg viewBox") == 5


if __name__ == "__main__":
    folder = tempfile.mkdtemp(prefix="nibble-train-study-")
    os.chdir(folder)
    try:
        main()
        every_recipe()
        print("ok")
    finally:
        os.chdir("/")
        shutil.rmtree(folder)
