"""Runs `tools/rl-study` at a small size: `rl_study.py build/cpu/nibble`

Its results must be those of the runs' logs. Recipes that guarantee agreement differ in no token, and the control
differs. A second run does nothing, and a killed study resumes with the missing runs. Problems that can be detected are
refused before the first run. Needs only Python's standard library.
"""
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import types
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TOOL = ROOT / "tools" / "rl-study"
NIBBLE = os.path.abspath(sys.argv[1])
SIZE = ["--task", "sum", "--size", "1", "--layers", "1", "--hidden", "64", "--read-steps", "10", "--start", "0.05", "--prompts", "4", "--answers", "4", "--steps", "4", "--every", "2",
        "--validation", "16", "--seeds", "2"]
RECIPES = ["bf16", "nvfp4-generation-tis", "fp8_block-fp8-cache"]


def the_tool():
    """Loads the tool as a module, because its file name cannot be imported."""
    made = types.ModuleType("rl_study")
    made.__file__ = str(TOOL)
    sys.path.insert(0, str(TOOL.parent))
    exec(compile(TOOL.read_text(), str(TOOL), "exec"), made.__dict__)
    return made


tool = the_tool()


def study(*more, recipes=RECIPES, nibble=NIBBLE):
    return [sys.executable, str(TOOL), str(nibble), *SIZE, "--recipes", *recipes, *map(str, more)]


def run(command, status=0):
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == status, (command, ran.returncode, ran.stdout, ran.stderr)
    return ran


def check(what, got, want):
    assert got == want, f"{what}: {got!r} is not {want!r}"


def results():
    return json.loads(pathlib.Path("out/study.json").read_text())


def log(name, seed):
    return [line for line in map(json.loads, open(f"out/runs/{name}-{seed}/train.jsonl")) if "step" in line]


def test_a_study_is_what_its_runs_say():
    # Killed after its first run ...
    child = subprocess.Popen(study("-o", "out"), stdout=subprocess.DEVNULL, start_new_session=True)
    while not pathlib.Path("out/study.json").exists() or not results()["runs"]:
        assert child.poll() is None, "ended before it was killed"
        time.sleep(0.02)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    before = results()
    assert len(before["runs"]) < len(RECIPES), before["runs"].keys()
    # ... it continues with the other runs.
    ran = run(study("-o", "out", "--jobs", "2"))
    done = re.findall(r"^(\S+), seed (\d)", ran.stdout, re.M)
    check("runs", sorted(done), sorted((n, str(s)) for n in RECIPES for s in (1, 2) if str(s) not in before["runs"].get(n, {})))
    found = results()
    for name, seeds in before["runs"].items():
        for seed, r in seeds.items():
            check("finished run", found["runs"][name][seed], r)
    check("base", found["base"], before["base"])
    assert 0.05 <= found["base"]["accuracy"] <= 0.4, found["base"]

    # Results must equal the logs.
    for name in RECIPES:
        logs, summed = [log(name, s) for s in (1, 2)], found["summary"][name]
        after = [lines[-1]["avg_at_k"] for lines in logs]
        check("after", (summed["after"]["mean"], summed["after"]["deviation"]), (statistics.mean(after), statistics.stdev(after)))
        check("late", summed["late"]["mean"], statistics.mean(after))  # a quarter of two validations is the last one
        check("tokens", summed["compared_tokens"], sum(line["compared_tokens"] for lines in logs for line in lines))
        differ = sum(line["mismatch_tokens"] for lines in logs for line in lines)
        check("mismatch", summed["mismatch_tokens"], differ)
        error = statistics.mean(line["token_mult_prob_error"] for lines in logs for line in lines)
        assert abs(summed["token_mult_prob_error"]["mean"] - error) < 1e-12
        seconds = statistics.mean(statistics.mean(line["seconds"] for line in lines) for lines in logs)
        assert abs(sum(summed["phases"].values()) - seconds) < 1e-9
        if name == "nvfp4-generation-tis":
            assert differ > 0 and error > 1 and summed["max_abs_diff"] > 0, summed
        else:
            check(name, (differ, error, summed["max_abs_diff"]), (0, 1.0, 0))
        for seed in (1, 2):
            config = json.loads(open(f"out/runs/{name}-{seed}/train.jsonl").readline())["run"]["config"]
            check("seed", config["grpo"]["seed"], seed)
            assert not list(pathlib.Path(f"out/runs/{name}-{seed}").glob("*.safetensors")), "weights are left"
    paired = [log("fp8_block-fp8-cache", s)[-1]["avg_at_k"] - log("bf16", s)[-1]["avg_at_k"] for s in (1, 2)]
    check("pairs", found["summary"]["fp8_block-fp8-cache"]["to_bf16"]["mean"], statistics.mean(paired))
    # No question is in both files.
    asked, held = ({json.loads(line)["input"] for line in open(f"out/{part}.jsonl")} for part in ("train", "validation"))
    check("questions", (len(asked | held), len(asked & held)), (81, 0))

    # Table and page.
    table, page = pathlib.Path("out/table.md").read_text(), pathlib.Path("out/study.html").read_text()
    for name in RECIPES:
        assert table.count(name) >= 3 and page.count(name) >= 6, name
    assert table in ran.stdout and NIBBLE in table
    assert not re.search(r"(src|href)=|<script|NaN|nan", page), "the page asks for something, or has no number"
    check("drawings", page.count("<svg viewBox"), 4 + 2 + 1)

    # A second run does nothing and changes nothing.
    kept = {f: f.read_bytes() for f in pathlib.Path("out").rglob("*") if f.is_file()}
    again = run(study("-o", "out", "--jobs", "2"))
    assert "seed" not in again.stdout.split("# A study")[0], again.stdout
    check("files", {f: f.read_bytes() for f in pathlib.Path("out").rglob("*") if f.is_file()}, kept)
    # Table and page can be generated again, also in another folder.
    for name in ("table.md", "study.html"):
        os.remove(f"out/{name}")
    run([sys.executable, str(TOOL), "-", "-o", "out", "--tables", "--figures", "figures"])
    figures = {f.name: f.read_text() for f in pathlib.Path("figures").iterdir()}
    check("figures", sorted(figures), ["out-accuracy-fp8.svg", "out-accuracy-nvfp4.svg", "out-errors.svg"])
    for name, text in figures.items():
        names = [e.text for e in xml.etree.ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}text")]
        wanted = {"out-accuracy-fp8.svg": ["bf16", "fp8_block-fp8-cache"], "out-accuracy-nvfp4.svg": ["bf16", "nvfp4-generation-tis"], "out-errors.svg": RECIPES}[name]
        assert set(wanted) <= set(names) and len(text) < 40000 and "prefers-color-scheme" in text and "http" not in text.split(">", 1)[1], (name, names, len(text))
    check("table and page", [pathlib.Path(f"out/{n}").read_text() for n in ("table.md", "study.html")], [table, page])
    # An unchanged chat model: there is no base training, and its template writes the prompts.
    chat = run(study("-o", "chat", "--model", "out/base/model", "--read-steps", "0", "--answer-tokens", "8", "--seeds", "1", recipes=["bf16"]))
    assert re.search(r"^\S+/out/base/model: accuracy 0\.\d{3}$", chat.stdout, re.M) and not pathlib.Path("chat/base").exists(), chat.stdout
    config = json.loads(open("chat/runs/bf16-1/train.jsonl").readline())["run"]["config"]
    check("config", [config["data"]["chat"], config["policy"]["generation"]["max_new_tokens"], config["policy"]["model_name"]], [True, 8, str(pathlib.Path("out/base/model").resolve())])
    # Continues the base training from a checkpoint.
    # the base may answer more than 40 % correctly
    read = subprocess.run(study("-o", "more", "--model", "out/base/model", "--seeds", "1", recipes=["bf16"]), capture_output=True, text=True)
    assert re.search(r"^base, 10 steps: accuracy \d\.\d{3}$", read.stdout, re.M) and not pathlib.Path("more/base/start").exists(), (read.stdout, read.stderr)
    assert f"model: {pathlib.Path('out/base/model').resolve()}\nrandom_start: false\n" in pathlib.Path("more/base/read-10.yaml").read_text()
    refused = run(study("-o", "none", "--model", "out/base/model", "--read-steps", "0"), status=2)
    assert "--answer-tokens" in refused.stderr
    refused = run(study("-o", "none", "--model", "out"), status=1)
    assert "no folder with *.safetensors" in refused.stderr
    # Another study is not mixed with it.
    refused = run(study("-o", "out", "--learning-rate", "1e-5"), status=1)
    assert "of another study" in refused.stderr and refused.stderr.count("\n") == 1, refused.stderr


def test_every_recipe():
    """Recipes that guarantee agreement differ in no token; the others differ."""
    run(study("-o", "every", "--layers", "3", "--steps", "1", "--every", "1", "--seeds", "1", recipes=tool.RECIPES))
    summed = json.loads(pathlib.Path("every/study.json").read_text())["summary"]
    check("recipes", sorted(summed), sorted(tool.RECIPES))
    for name, r in summed.items():
        assert r["compared_tokens"] > 0, name
        check(f"{name} differs", r["mismatch_tokens"] > 0, "-generation" in name or "-tensor-" in name)


def test_questions_of_files():
    rows = [{"input": f"Say {w}.", "output": w, "more": 1} for w in "abcdefghij"]
    pathlib.Path("train.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows[:8]))
    pathlib.Path("validation.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows[8:]))
    few = study("-o", "out", "--rows", ".", "--seeds", "1", "--read-most", "10", "--read-sequence", "32", recipes=["bf16"])
    # two held-out questions: the base's accuracy is arbitrary
    ran = subprocess.run(few, capture_output=True, text=True)
    assert re.search(r"^base, 10 steps: accuracy (0|1)\.\d{3}$", ran.stdout, re.M), (ran.stdout, ran.stderr)
    check("rows", [json.loads(line) for line in open("out/validation.jsonl")], [{k: r[k] for k in ("input", "output")} for r in rows[8:]])
    config = pathlib.Path("out/base/rows.jsonl").read_text()
    check("what the base reads", config.splitlines()[0], '{"text": "Say a.\\na"}')


def test_what_is_refused_before_the_first_run():
    pathlib.Path("file").write_text("")
    for folder, rows in (("both", [{"input": "a", "output": "b"}]), ("poor", [{"input": "a"}])):
        pathlib.Path(folder).mkdir()
        for part in ("train", "validation"):
            pathlib.Path(folder, f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for command, status, said in [
        (study("-o", "no", nibble="absent"), 1, "absent: no program"),
        (study("-o", "file/no"), 1, "file/no: cannot be written"),
        (study("-o", "no", "--rows", "absent"), 1, "absent/train.jsonl: No such file"),
        (study("-o", "no", "--rows", "both"), 1, "1 questions are in both files; the first one: a"),
        (study("-o", "no", "--rows", "poor"), 1, "poor/train.jsonl: needs lines"),
        (study("-o", "no", "--start", "0.9"), 2, "--start: from 0.05 to 0.4"),
        (study("-o", "no", "--device", "cuda"), 2, "--hidden: a multiple of 384 on a GPU"),
        (study("-o", "no", "--experts", "1"), 2, "--experts: 0, or at least 2"),
        (study("-o", "no", "--every", "3"), 2, "--steps: a multiple of --every"),
        (study("-o", "no", recipes=["bf17"]), 2, "bf17"),
        (study("-o", "much", "--jobs", "1000000"), 1, "MiB needed"),
        (study("-o", "no", "--tables"), 1, "No such file"),
        (study("-o", "never", "--start", "0.4", "--read-most", "10"), 1, "give more --read-most"),
    ]:
        ran = run(command, status=status)
        assert said in ran.stderr and "Traceback" not in ran.stderr, (command, ran.stderr)
        assert not list(pathlib.Path(".").glob("*/runs/*")), command


def main():
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            folder = tempfile.mkdtemp(prefix="nibble-rl-study-")
            os.chdir(folder)
            try:
                test()
                print(f"{name}: ok", flush=True)
            finally:
                os.chdir("/")
                shutil.rmtree(folder)


if __name__ == "__main__":
    main()
