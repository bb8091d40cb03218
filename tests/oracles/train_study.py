"""Runs `tools/train-study` at a small size: `train_study.py build/cpu/nibble`

Its gaps must be differences of its runs. Its page shows every recipe with the spread over seeds and the validation
losses. A second run trains nothing. Folders of single seeds merge to the bytes and figures of one study. Another study,
or another result of the same run, is refused. Needs only Python's standard library.
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
import xml.etree.ElementTree

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools" / "train-study"
NIBBLE = os.path.abspath(sys.argv[1])
NAMES = ["nvfp4", "nvfp4 forward alone", "nvfp4 backward alone"]
SMALL = ["--steps", "15", "--seeds", "2", "--layers", "1", "--hidden", "64", "--batch", "2", "--sequence", "48", "--chunks", "4", "--validation", "1", "--characters", "60000", "--threads", "2"]


def tool(*words, status=0):
    ran = subprocess.run([str(TOOL), *words], capture_output=True, text=True)
    assert ran.returncode == status, (ran.returncode, ran.stdout, ran.stderr)
    return ran


def run(*more, status=0):
    return tool(NIBBLE, "-o", "out", *SMALL, "--recipes", *NAMES, *more, status=status)


def check(what, got, want):
    assert got == want, f"{what}: {got!r} is not {want!r}"


def every_recipe():
    """Runs all recipes and parts: each trains, is served in its format and evaluated."""
    options = ["--ablation", "--steps", "2", "--seeds", "1", "--layers", "1", "--hidden", "64", "--batch", "8", "--sequence", "512", "--chunks", "1", "--validation", "1", "--characters", "60000", "--threads", "2"]
    tool(NIBBLE, "-o", "every", *options)
    study = json.loads(pathlib.Path("every/study.json").read_text())
    check("recipes", len(study["runs"]), 19)
    for name, runs in study["runs"].items():
        assert all(0 < runs["1"][kind] < 12 for kind in ("bf16", "served", "training")), (name, runs)


def figures(folder):
    return {f.name: f.read_text() for f in pathlib.Path(folder).iterdir()}


def merged(table):
    """Merges one folder per seed, as from several machines, to the study that trained both."""
    study = json.loads(pathlib.Path("out/study.json").read_text())
    for seed in ("1", "2"):
        pathlib.Path(seed).mkdir()
        runs = {n: {seed: r[seed]} for n, r in study["runs"].items()}
        pathlib.Path(seed, "study.json").write_text(json.dumps({"about": study["about"], "runs": runs}))
    pathlib.Path("again").mkdir()
    check("the table", tool("-", "-o", "again/out", "--merge", "2", "1", "--figures", "merged").stdout, table)
    check("one study", pathlib.Path("again/out/study.json").read_bytes(), pathlib.Path("out/study.json").read_bytes())
    check("table.md", pathlib.Path("again/out/table.md").read_text(), table)
    tool("-", "-o", "out", "--page", "--figures", "figures")
    check("the same figures", figures("merged"), figures("figures"))
    check("figures", sorted(figures("figures")), ["out-parts-curves.svg", "out-parts.svg", "out-recipes-curves.svg", "out-recipes.svg"])
    for name, text in figures("figures").items():
        words = [e.text for e in xml.etree.ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}text")]
        wanted = (["nvfp4"] if "recipes" in name else NAMES) + ([] if "curves" in name else ["evaluated in BF16", "as served", "by the run itself"])
        assert set(wanted) <= set(words) and len(text) < 60000 and "prefers-color-scheme" in text and "http" not in text.split(">", 1)[1], (name, words, len(text))
    # A seed trained by another call in another folder is the same run.
    tool(NIBBLE, "-o", "second", *SMALL, "--recipes", "nvfp4", "--seeds", "1", "--first-seed", "2")
    check("nothing new", tool("-", "-o", "out", "--merge", "second").stdout, table)
    other = json.loads(pathlib.Path("2/study.json").read_text())
    other["runs"]["nvfp4"]["2"]["served"] += 0.001
    pathlib.Path("2/study.json").write_text(json.dumps(other))
    kept = pathlib.Path("out/study.json").read_bytes()
    refused = tool("-", "-o", "out", "--merge", "1", "2", status=1)
    assert refused.stderr.startswith("2/study.json: nvfp4 with seed 2 has another result"), refused.stderr
    other["about"]["steps"] = 16
    pathlib.Path("2/study.json").write_text(json.dumps(other))
    check("another study", tool("-", "-o", "out", "--merge", "2", status=1).stderr, "2/study.json: of another study: steps\n")
    check("no study", tool("-", "-o", "new", "--merge", "nowhere", status=1).stderr, "nowhere/study.json: No such file or directory\n")
    check("what was there", pathlib.Path("out/study.json").read_bytes(), kept)
    assert not pathlib.Path("new").exists()


def main():
    refused = tool("-", "-o", "out", "--page", status=1)
    assert "out/study.json: No such file" in refused.stderr, refused.stderr
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
    # Each pass is rounded alone; neither equals the whole recipe or bf16.
    losses = {n: study["runs"][n]["1"]["training"] for n in ["bf16", *NAMES]}
    check("four ways to train", len(set(losses.values())), 4)
    page = pathlib.Path("out/study.html").read_text()
    assert not re.search(r"(src|href)=\"(https?:)?//", page) and "<script" not in page, "the page stands alone"
    for name in NAMES: assert page.count(name) >= 5, (name, page.count(name))
    check("charts", page.count("<svg viewBox"), 5)  # charts of recipes and of parts: gaps, gaps over steps; validation
    logs = {p: p.stat().st_mtime_ns for p in pathlib.Path("out/runs").rglob("train.jsonl")}
    again = run()
    check("nothing was trained again", {p: p.stat().st_mtime_ns for p in logs}, logs)
    check("the same table", again.stdout, ran.stdout[ran.stdout.index("| recipe"):])
    pathlib.Path("out/study.html").unlink()
    check("--page", tool("-", "-o", "out", "--page").stdout, again.stdout)
    assert pathlib.Path("out/study.html").read_text().count("<svg viewBox") == 5
    merged(again.stdout)


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
