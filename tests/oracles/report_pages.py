"""Tests the HTML pages of reports and runs in a real browser: `report_pages.py build/cpu/nibble [--screenshots FOLDER]`

Small models are quantized, evaluated, searched, trained, improved by RL and served. Every page is opened as a file in
headless Chromium (page_browser.py), its elements are read back and compared with the JSON files that the commands write.
"""
import argparse
import collections
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import traceback

from page_browser import CONTRAST, MODEL, Keys, Page, wait

# The sections of every page, and how many charts, tables and cards they have together.
PAGES = {
    "quantization": (["What is in the export", "Error by layer", "Codes and block scales", "Four instead of six", "Tensors with the largest errors",
                      "What stayed unquantized, and why", "The whole plan", "This run"], 11, 5, 7),
    "calibrated": (["What is in the export", "Error by layer", "What calibration did to the layers' outputs", "Codes and block scales",
                    "Tensors with the largest errors", "What stayed unquantized, and why", "The whole plan", "This run"], 10, 6, 7),
    "evaluation": (["Checkpoints", "Scores", "Scores divided by the reference's", "Divergence from the reference", "How it was measured"], 2, 2, 0),
    "search": (["Loss against bits per weight", "Groups", "How it was made"], 1, 2, 0),
    "training": (["Runs", "Loss", "Validation loss", "Gradient norm", "Learning rate", "Throughput", "Quantization error"], 5, 2, 0),
    "comparison": (["Runs", "Loss gaps", "Loss", "Validation loss", "Gradient norm", "Learning rate", "Throughput"], 5, 2, 0),
    "reinforcement": (["Reward", "Answers of step 3", "Answers", "Engine against trainer", "Time", "Update"], 15, 0, 4),
    "serving": (["Throughput and time per token", "Loads"], 1, 1, 0),
}
HOSTILE = "</script><script>hacked()</script><img src=x onerror=hacked()>\"'><svg onload=hacked()>&amp;\u2028\u0001${hacked()}`"


class Commands:
    """Runs the commands once; `page` maps a name to its file."""

    def __init__(self, program, folder):
        self.program, self.folder = os.path.abspath(program), pathlib.Path(folder)
        words = "The quick brown fox jumps over the lazy dog, and " * 90
        self.write("a.txt", words[:3000])
        self.write("b.txt", words[1500:4200])
        quantized = [("q4", "nvfp4_four_over_six"), ("q8", "fp8"), ("best", "nvfp4_nibble_best")]
        for name, recipe in quantized:
            self.run("quantize", MODEL, "-o", name, "--recipe", recipe, "--calib", "a.txt", "--quiet")
        self.run("eval", "q4", "q8", "--against", MODEL, "--text", "b.txt", "-o", "ev", "--quiet")
        self.run("search", MODEL, "--calib", "a.txt", "--bits", "6", "--measure", "b.txt", "--measure-tokens", "512", "-o", "mixed.yaml", "--quiet")
        self.run("data", "build", "a.txt", "b.txt", "-o", "book", "--tokenizer", MODEL, "--val", "0.2", "--val-by", "tails")
        runs = []
        for precision in ("bf16", "nvfp4"):
            for seed in (1, 2):
                runs.append(f"<b>{precision} {seed}")
                self.write("train.yaml", json.dumps({"model": MODEL, "seed": seed, "output": runs[-1], "steps": 12, "batch": 2, "sequence": 64, "precision": precision,
                                                     "data": {"folder": "book"}, "validation": {"every": 4, "batches": 1}, "quality": {"every": 6}}))
                self.run("train", "train.yaml", "--quiet", "--threads", "1")
        self.run("train", "--compare", *runs, "-o", "gap.html")
        self.write("rl.yaml", json.dumps({
            "policy": {"model_name": MODEL, "max_total_sequence_length": 96, "optimizer": {"lr": 0.003}, "generation": {"max_new_tokens": 16}},
            "grpo": {"num_prompts_per_step": 2, "num_generations_per_prompt": 3, "max_num_steps": 4, "val_period": 2, "max_val_samples": 2, "num_val_generations_per_prompt": 3},
            "loss_fn": {"reference_policy_kl_penalty": 0.01}, "data": {"task": "sort", "chat": False, "prompt": "Q: {}\nA:"}}))
        self.run("rl", "rl.yaml", "-o", "rl", "--threads", "1", "--quiet")
        self.run("bench", "serve", MODEL, "--rounds", "2", "--concurrency", "1", "2", "-o", "serve.html")
        self.runs = runs
        self.page = {"quantization": "q4/nibble-report.html", "calibrated": "best/nibble-report.html", "evaluation": "ev/eval.html", "search": "mixed.html", "training": f"{runs[2]}/report.html",
                     "comparison": "gap.html", "reinforcement": "rl/report.html", "serving": "serve.html"}

    def write(self, name, text):
        (self.folder / name).write_text(text, encoding="utf-8")

    def run(self, *words):
        done = subprocess.run([self.program, *words], cwd=self.folder, capture_output=True, text=True)
        assert done.returncode == 0, (words, done.stderr)

    def json(self, name):
        return json.loads((self.folder / name).read_text(encoding="utf-8"))

    def log(self, run):
        return [json.loads(line) for line in (self.folder / run / "train.jsonl").read_text(encoding="utf-8").splitlines()]


class Pages:
    """Opens pages and reads them back."""

    def __init__(self, commands, browser):
        self.commands, self.browser = commands, browser

    def open(self, name):
        return self.open_file(self.commands.folder / self.commands.page.get(name, name))

    def open_file(self, path):
        self.browser.driver.get("about:blank")
        self.browser.driver.get(pathlib.Path(path).as_uri())
        return self

    def js(self, script, *values):
        return self.browser.js(script, *values)

    def texts(self, css):
        return self.js("return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", css)

    def rows(self, section, table=0):
        """Returns the cells of a table's rows as text."""
        return self.js("const s = [...document.querySelectorAll('section')].find(s => s.querySelector('h2').textContent === arguments[0]);"
                       "return [...s.querySelectorAll('table')[arguments[1]].tBodies[0].rows].map(r => [...r.cells].map(c => c.textContent))", section, table)

    def tips(self, css="[data-tip]"):
        return self.js("return [...document.querySelectorAll(arguments[0])].map(e => e.dataset.tip)", css)

    def cards(self):
        return dict(zip(self.texts(".card .what"), zip(self.texts(".card .figure"), self.texts(".card .more"))))


def equal(what, got, want):
    assert got == want, f"{what}: {got!r} is not {want!r}"


def decibels(weight, error):
    return 10 * math.log10(weight / error) if error > 0 else math.inf


def test_every_page_has_its_elements(pages):
    for name, (sections, charts, tables, cards) in PAGES.items():
        pages.open(name)
        found = pages.texts("h2")
        equal(name + ": sections", found, sections)
        equal(name + ": charts", len(pages.texts("svg[role=img]")), charts)
        equal(name + ": tables", len(pages.texts("table")), tables)
        equal(name + ": cards", len(pages.texts(".card")), cards)
        text = pages.js("return document.querySelector('main').innerText")
        for wrong in ("undefined", "NaN", "[object", "null", "Infinity"):
            assert wrong not in text, (name, wrong)
        pages.browser.shoot(name)


def test_quantization(pages):
    report = pages.commands.json("q4/nibble-report.json")
    tensors = {t["name"]: t for t in report["tensors"]}
    pages.open("quantization")
    equal("title", pages.texts("h1"), ["q4"])
    equal("plan", [r[0] for r in pages.rows("The whole plan")], list(tensors))
    for row in pages.rows("The whole plan"):
        t = tensors[row[0]]
        equal(row[0], row[1:5] + row[7:], [f"{t['dtype']} {' × '.join(map(str, t['shape']))}", t["method"] or "as it was", "" if t["activation"] == "none" else t["activation"],
                                           f"{8 * t['stored_bytes'] / t['elements']:.2f}", t["reason"]])
    quantized = [t for t in tensors.values() if t["method"]]
    order = sorted(quantized, key=lambda t: t["sqnr_db"])[:20]
    equal("worst", [r[0] for r in pages.rows("Tensors with the largest errors")], [t["name"] for t in order])
    for row, t in zip(pages.rows("Tensors with the largest errors"), order):
        equal(row[0], [row[2], *row[6:]], [f"{t['sqnr_db']:.2f}", f"{t['saturated']:,}", f"{t['sign_flips']:,}"])
    cards = pages.cards()
    totals = report["totals"]
    equal("bits", cards["Bits per weight"], (f"{totals['quantized_bits_per_element']:.2f}", f"of the {totals['quantized_tensors']} quantized tensors; {totals['bits_per_element']:.2f} over all"))
    equal("SQNR", cards["SQNR of all weights"][0], f"{totals['sqnr_db']:.2f}\u202fdB")
    equal("lowest", cards["Lowest SQNR of a tensor"][0], f"{order[0]['sqnr_db']:.2f}\u202fdB")
    total = pages.rows("What is in the export")[-1]
    equal("total", [total[1], total[7]], [str(totals["tensors"]), f"{totals['sqnr_db']:.2f}"])
    equal("unquantized", sum(int(r[2]) for r in pages.rows("What stayed unquantized, and why") if r[1] == ""), len(tensors) - len(quantized))
    # The bars of the codes are the histograms of all tensors together.
    counts = collections.Counter()
    for t in quantized:
        for i, n in enumerate(t["codes"]["counts"]):
            counts[t["codes"]["first"] + i] += n
    shown = [int(tip.split(": ")[1].split(" (")[0].replace(",", "")) for tip in pages.tips("svg[aria-label^='How often each E2M1'] [data-tip]")]
    equal("codes", shown, [counts[15 - i if i < 8 else i - 8] for i in range(16)])
    raised, blocks = (sum(t[key] for t in quantized) for key in ("raised_blocks", "blocks"))
    assert f"{raised:,} of {blocks:,} blocks" in " ".join(pages.texts(".note")), pages.texts(".note")
    # Every tensor of a layer has its point.
    for t in quantized:
        layer = re.search(r"layers\.(\d+)\.", t["name"])
        assert any(tip.endswith(f"layer {layer[1]}: {t['sqnr_db']:.2f} dB") for tip in pages.tips()) if layer else True, t["name"]


def test_fp8_and_calibrated_reports(pages):
    report = pages.commands.json("q8/nibble-report.json")
    pages.open("q8/nibble-report.html")
    cells = pages.tips("svg[aria-label^='How often each E4M3'] .heat")
    equal("codes", len(cells), 254)
    equal("ends", (cells[0].split(":")[0], cells[126].split(":")[0], cells[127].split(":")[0], cells[-1].split(":")[0]), ("−448", "−0", "0", "448"))
    equal("weights", sum(int(c.split(": ")[1].split(" (")[0].replace(",", "")) for c in cells), report["totals"]["quantized_elements"])
    report = pages.commands.json("best/nibble-report.json")
    pages.open("calibrated")
    outputs = pages.rows("What calibration did to the layers' outputs")
    equal("outputs", [r[0] for r in outputs], [e["module"] for e in report["layer_outputs"]])
    for row, e in zip(outputs, report["layer_outputs"]):
        equal(row[0], row[1:3], [f"{decibels(e['energy'], e['error_before']):.2f}", f"{decibels(e['energy'], e['error_after']):.2f}"])
    assert "SQNR compares weights" in " ".join(pages.texts("strong"))
    assert "Time of the whole job" in pages.cards()


def test_evaluation(pages):
    report = pages.commands.json("ev/eval.json")
    pages.open("evaluation")
    subjects = report["checkpoints"]
    equal("subjects", [r[0] for r in pages.rows("Checkpoints")], [f"{i + 1} {s['name']}" for i, s in enumerate(subjects)])
    equal("bits", [r[2] for r in pages.rows("Checkpoints")], [f"{s['bits_per_element']:.2f}" for s in subjects])
    rows, charted = pages.rows("Scores"), 0
    for task in range(len(subjects[0]["tasks"])):
        for name in subjects[0]["tasks"][task]["metrics"]:
            row = next(r for r in rows if r[1] == name)
            compared = 0
            for s, cell in zip(subjects, row[2:]):
                metric = s["tasks"][task]["metrics"].get(name)
                if metric is None:
                    equal(name, cell, "")
                    continue
                shown = re.match(r"(-?[\d.]+(?:e[-+]\d+)?)(?: ± \S+)?( %)?", cell)
                first = float(shown[1]) / (100 if shown[2] else 1)
                assert math.isclose(first, metric["value"], rel_tol=1e-3, abs_tol=6e-5), (name, cell, metric)
                if "ratio" in metric:
                    assert cell.endswith(f"{metric['ratio']:.4f} times the reference's"), cell
                if "recovery" in metric:
                    assert cell.endswith(f"{100 * metric['recovery']:.1f} % of the reference"), cell
                compared += "ratio" in metric or "recovery" in metric
            charted += compared > 0
    equal("charts", len(pages.texts("figure svg")), charted)
    quantiles = [q for s in subjects for t in s["tasks"] for q in t["details"].get("kl_quantiles", []) if q[1] > 0]
    equal("quantiles", len(pages.tips("svg[aria-label^='Kullback'] [data-tip]")), len(quantiles))


def test_search(pages):
    report = pages.commands.json("mixed.json")
    pages.open("search")
    equal("title", pages.texts("h1"), [f"{report['chosen']['bits']:.3f} effective bits"])
    equal("sweep", [r[:2] + r[3:4] for r in pages.rows("Loss against bits per weight")],
          [[f"{p['target']:.3f}", f"{p['bits']:.4f}", f"{p['kl']:.5f}"] for p in report["sweep"]])
    elements, best = collections.Counter(), report["sweep"][-1]
    for name, g in report["groups"].items():
        elements[best["choice"][name]] += g["elements"]
    for part in pages.rows("Loss against bits per weight")[-1][4].split(", "):
        name, share = part.split(" ")
        assert abs(float(share[:-1]) - 100 * elements[name] / sum(elements.values())) < 0.06, part
    equal("groups", [[r[0], r[2]] for r in pages.rows("Groups")], [[n, report["chosen"]["choice"][n]] for n in report["groups"]])
    equal("points", len(pages.tips()), 2 * len(report["sweep"]))


def test_training(pages):
    run = pages.commands.runs[2]
    lines = pages.commands.log(run)
    steps = [line for line in lines if "loss" in line]
    pages.open("training")
    row = pages.rows("Runs")[0]
    equal("run", [row[0], row[1], row[2], row[3], row[4]], [run, str(len(steps)), f"{sum(s['tokens'] for s in steps):,}", f"{sum(s['loss'] for s in steps[-20:]) / len(steps[-20:]):.4f}",
                                                           f"{[s['validation'] for s in steps if 'validation' in s][-1]:.4f}"])
    for label, key in (("Loss", "loss"), ("Gradient norm", "gradient_norm"), ("Learning rate", "learning_rate"), ("Validation loss", "validation")):
        shown = [float(tip.rsplit(": ", 1)[1]) for tip in pages.tips(f"svg[aria-label='{label}'] [data-tip]")]
        logged = [s[key] for s in steps if key in s]
        assert len(shown) == len(logged) and all(math.isclose(a, b, rel_tol=1e-3) for a, b in zip(shown, logged)), (key, shown, logged)
    quality = [s["quality"] for s in steps if "quality" in s][-1]
    equal("units", [r[1] for r in pages.rows("Quantization error")], [q["unit"] for q in quality])
    equal("errors", [r[2] for r in pages.rows("Quantization error")], [f"{100 * math.sqrt(q['inputs']['error']):.2f}%" for q in quality])


def test_comparison(pages):
    pages.open("comparison")
    final = {}
    for run in pages.commands.runs:
        final[run] = [s["validation"] for s in pages.commands.log(run) if "validation" in s][-1]
    equal("runs", [[r[0], r[4]] for r in pages.rows("Runs")], [[run, f"{loss:.4f}"] for run, loss in final.items()])
    bf16, nvfp4 = ([final[run] for run in pages.commands.runs[i:i + 2]] for i in (0, 2))
    gaps = pages.rows("Loss gaps")
    for row, losses in zip(gaps, (bf16, nvfp4)):
        deviation = abs(losses[0] - losses[1]) / math.sqrt(2)
        equal("group", row[1:3], ["2", f"{sum(losses) / 2:.4f} ± {deviation:.4f}"])
    assert abs(float(gaps[1][3].split(" ")[0].replace("−", "-")) - (sum(nvfp4) - sum(bf16)) / 2) < 6e-5, gaps
    equal("first", gaps[0][3], "–")


def test_reinforcement(pages):
    steps = [line for line in pages.commands.log("rl") if "reward" in line]
    samples = pages.commands.json("rl/samples.json")
    pages.open("reinforcement")
    cards = pages.cards()
    compared = sum(s["compared_tokens"] for s in steps)
    equal("tokens", cards["Tokens that differ"], (f"{sum(s['mismatch_tokens'] for s in steps):,}", f"of {compared:,} compared between engine and trainer, in any bit"))
    last = [s for s in steps if "validation_reward" in s][-1]
    assert cards["Validation reward"][1].startswith(f"after step {last['step']}; {last['validation_prompts']} prompts; avg@3 "), cards
    for label, key in (("Entropy", "approx_entropy"), ("Gradient norm", "gradient_norm"), ("Generated", "generated_tokens")):
        shown = [float(tip.rsplit(": ", 1)[1]) for tip in pages.tips(f"svg[aria-label='{label}'] [data-tip]")]
        assert len(shown) == len(steps) and all(math.isclose(a, s[key], rel_tol=1e-3, abs_tol=1e-9) for a, s in zip(shown, steps)), (key, shown)
    equal("answers", len(pages.texts("article")), len(samples["samples"]))
    for shown, sample in zip(pages.texts("article .tokens"), samples["samples"]):
        equal("tokens", re.sub("[\u0000-\u0008\u000b-\u001f\u007f]", "\ufffd", "".join(t["text"] for t in sample["tokens"]).replace("\n", "↵\n")), shown)
    equal("questions", [q for q in pages.texts("article .asked") if not q.startswith("Expected")], [s["question"] for s in samples["samples"]])
    phases = [float(style.split(":")[1].strip(" ;")) for style in pages.js("return [...document.querySelectorAll('.composition div')].map(e => e.getAttribute('style'))")]
    assert abs(sum(phases) - 100) < 0.01, phases


def test_shades_of_tokens(pages):
    # (generated, previous, current, same, stale) and the classes of the token.
    cases = [((-0.01, -0.01, -0.01, True, False), "t"), ((-3.0, -3.0, -2.0, True, False), "u3 up3"), ((-1.0, -1.1, -1.05, False, False), "u2 dn1 differs"),
             ((-0.2, -0.2, -0.15, True, True), "u1 up1 stale")]
    pages.open("reinforcement")
    for (generated, previous, current, same, stale), css in cases:
        token = {"text": "x", "written": True, "generated": generated, "previous": previous, "current": current, "same": same, "stale": stale}
        equal(css, pages.js("return tokenOf(arguments[0]).className", token), css)
    equal("read", pages.js("return tokenOf({text: 'a\\nb', written: false}).outerHTML"), '<span class="read">a↵\nb</span>')


def test_serving(pages):
    pages.open("serving")
    loads = pages.js("return JSON.parse(document.getElementById('data').textContent).loads")
    equal("loads", [r[:3] for r in pages.rows("Loads")], [[x["name"], str(x["concurrency"]), f"{x['output_tokens_per_second']:.1f}"] for x in loads])
    equal("points", len(pages.tips()), 2)


def test_hostile_text(pages):
    def poison(value):
        if isinstance(value, str):
            return HOSTILE
        if isinstance(value, list):
            return [poison(v) for v in value]
        return {key: poison(v) for key, v in value.items()} if isinstance(value, dict) else value

    for name, file in pages.commands.page.items():
        text = (pages.commands.folder / file).read_text(encoding="utf-8")
        begin = text.index(">", text.index('<script type="application/json"')) + 1
        end = text.index("</script>", begin)
        data = poison(json.loads(text[begin:end]))
        if name == "quantization":
            data["report"]["settings"][HOSTILE] = data["report"]["versions"][HOSTILE] = HOSTILE
        poisoned = pages.commands.folder / f"hostile-{name}.html"
        poisoned.write_text(text[:begin] + json.dumps(data).replace("<", "\\u003c") + text[end:], encoding="utf-8")
        pages.open_file(poisoned)
        counts = pages.js("return ['script', 'img', 'svg[onload]', 'iframe', 'main > section'].map(s => document.querySelectorAll(s).length)")
        assert counts[:4] == [2, 0, 0, 0] and counts[4] > 0, (name, counts)
        assert HOSTILE.replace("\u0001", "\ufffd") in pages.js("return document.querySelector('main').textContent"), name


def test_charts(pages):
    pages.open("quantization")
    for low, high, most in ((0, 1, 5), (-3.2, 17.9, 7), (1e-9, 4e-9, 4), (0, 123456, 12)):
        marks = pages.js("return ticks(...arguments)", low, high, most)
        steps = {round((b[0] - a[0]) / (marks[1][0] - marks[0][0]), 6) for a, b in zip(marks, marks[1:])}
        assert steps == {1} and all(low - 1e-12 <= m[0] <= high + 1e-12 for m in marks) and most / 3 <= len(marks) <= 2.5 * most + 1, marks
        digit = float(f"{marks[1][0] - marks[0][0]:.6e}"[0])
        assert digit in (1, 2, 5) or abs(digit - 1) < 1e-6 or digit in (9, 4), marks
    equal("no range", pages.js("return [ticks(1, 1, 5), ticks(2, 1, 5), ticks(null, 1, 5)]"), [[], [], []])
    equal("markers", pages.js("return new Set([...Array(8).keys()].map(i => marker(i, 0, 0, 4))).size"), 8)
    broken = pages.js("const s = {name: 'a', style: 0, points: [[0, 1], [1, 2], [2, null], [3, 1], [4, 3]].map(([x, mid]) => ({x, mid, tip: 'p'}))};"
                      "const c = lineChart({title: 't', x: [0, 4], y: [0, 3], series: [s]});"
                      "return [c.querySelector('.line').getAttribute('d').split('M').length - 1, c.querySelectorAll('[data-tip]').length]")
    equal("a missing point breaks the line", broken, [2, 4])
    heights = pages.js("return [...barChart({title: 't', x: [0, 3], bars: [1, 1e-9, 0].map((value, i) => ({from: i, to: i + 1, value, tip: ''}))}).querySelectorAll('rect')].map(r => +r.getAttribute('height'))")
    assert heights[0] > 100 and 0 < heights[1] < 2 and heights[2] == 0, heights
    shades = pages.js("return [...heatStrip({title: 't', xTicks: [], cells: [0, 1, 5, 100, 1e6].map(value => ({value, tip: ''}))}).querySelectorAll('rect')].map(r => +r.getAttribute('fill-opacity'))")
    assert shades == sorted(shades) and shades[0] == 0 and shades[-1] == 1, shades
    numbers = {"bytes(1234567)": "1.23 MB", "large(106000000)": "106 M", "duration(0.0042)": "4 ms", "duration(192.3)": "3 min 12 s", "duration(3900)": "1 h 05 min", "duration(null)": "–",
               "share(1, 32)": "3.12%", "places(4.625, 2)": "4.62", "places(2.5, 0)": "2", "places(0.375, 2)": "0.38", "share(0, 5)": "0", "share(1, 1e9)": "< 0.0001%", "significant(0.00012345)": f"{0.00012345:.4g}", "significant(1e-7)": "1e-07", "significant(123456)": "1.235e+05",
               "significant(0)": "0", "short(2.50, 3)": "2.5", "short(-0.001)": "0", "fixed(Infinity, 2)": "∞", "count(1234567)": "1,234,567", "e4m3(126)": 448, "e4m3(1)": 2**-9, "e2m1(7)": 6, "e2m1(1)": 0.5}
    for expression, text in numbers.items():
        equal(expression, pages.js("return " + expression), text)


def test_marks_lie_inside_their_charts_and_differ_without_colour(pages):
    for name in pages.commands.page:
        pages.open(name)
        outside = pages.js("document.querySelectorAll('details').forEach(d => d.open = true);"
                           "return [...document.querySelectorAll('svg[role=img]')].flatMap(s => { const b = s.getBoundingClientRect();"
                           "return [...s.querySelectorAll('[data-tip]')].map(m => m.getBoundingClientRect()).filter(m => m.left < b.left - 6 || m.right > b.right + 6 || m.top < b.top - 6 || m.bottom > b.bottom + 6) }).length")
        equal(name + ": marks outside", outside, 0)
        same = pages.js("return [...document.querySelectorAll('.legend')].filter(l => { const d = [...l.querySelectorAll('svg.icon path')].map(p => p.getAttribute('d')).slice(0, 8);"
                        "return new Set(d).size !== d.length }).length")
        equal(name + ": legends with equal markers", same, 0)


def test_sort_filter_and_tooltip(pages):
    pages.open("quantization")
    pages.js("document.querySelectorAll('details').forEach(d => d.open = true)")
    head = "[...document.querySelectorAll('table.plan th')].find(h => h.textContent === 'size')"
    size = "[...document.querySelector('table.plan').tBodies[0].rows].filter(r => !r.hidden).map(r => +r.cells[5].dataset.v)"
    pages.js(f"{head}.click()")
    sizes = pages.js("return " + size)
    equal("sorted", sizes, sorted(sizes))
    pages.js(f"{head}.click()")
    equal("reversed", pages.js("return " + size), sorted(sizes, reverse=True))
    field = pages.browser.all(".filter")[-1]
    field.send_keys("q_proj weight")
    shown = [name for name, hidden in pages.js("return [...document.querySelector('table.plan').tBodies[0].rows].map(r => [r.cells[0].textContent, r.hidden])") if not hidden]
    assert shown and all("q_proj" in name for name in shown), shown
    field.send_keys(Keys.CONTROL + "a" + Keys.NULL, Keys.DELETE)
    tip = pages.js("const m = document.querySelector('.bar'); const b = m.getBoundingClientRect();"
                   "m.dispatchEvent(new PointerEvent('pointermove', {bubbles: true, clientX: b.left, clientY: b.top})); const t = document.querySelector('.tooltip'); return [t.hidden, t.textContent, m.dataset.tip]")
    equal("tooltip", (tip[0], tip[1]), (False, tip[2]))


def test_light_dark_phone_and_print(pages):
    for name in pages.commands.page:
        pages.open(name)
        for width, scheme in ((1100, "light"), (1100, "dark"), (390, "light")):
            pages.browser.window(width, 844, width < 500)
            pages.browser.scheme(scheme)
            assert pages.js("return document.documentElement.scrollWidth <= innerWidth + 1"), (name, width)
            bad = [b for b in pages.js(CONTRAST) if "figure" not in b and not b.startswith("SPAN.read")]
            assert not bad, (name, scheme, bad[:5])
            pages.browser.shoot(f"{name}-{scheme}-{width}")
        pages.browser.window(1100, 800)
        pages.browser.scheme("light")
        printed = pages.browser.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": False})["data"]
        assert len(printed) > 10000, name


def test_a_running_run_reloads(pages):
    text = (pages.commands.folder / pages.commands.page["training"]).read_text(encoding="utf-8")
    assert "http-equiv=\"refresh\"" not in text, "the run is over"
    file = pages.commands.folder / "running.html"
    file.write_text(text.replace("<title>", '<meta http-equiv="refresh" content="1">\n<title>', 1), encoding="utf-8")
    pages.open_file(file)
    assert "3,333" not in pages.texts("td")
    file.write_text(re.sub(r'"steps": ?\d+', '"steps":3333', file.read_text(encoding="utf-8")), encoding="utf-8")
    wait(lambda: "3,333" in pages.texts("td"), "the page to reload")


class Files:
    url = "file:"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--screenshots", default="")
    parser.add_argument("--only", default="", help="run tests whose name contains it")
    arguments = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        browser = Page(Files, arguments.screenshots)
        try:
            pages = Pages(Commands(arguments.program, folder), browser)
            for name, test in [(n, t) for n, t in globals().items() if n.startswith("test_") and arguments.only in n]:
                try:
                    test(pages)
                    bad = browser.complaints()
                    assert not bad, bad
                    print(f"{name}: ok", flush=True)
                except Exception as error:  # continue with the next test
                    failed += 1
                    browser.shoot("failed-" + name)
                    browser.complaints()
                    at = traceback.extract_tb(error.__traceback__)[-1]
                    print(f"{name}: FAILED: line {at.lineno}, {at.line}: {type(error).__name__}: {error}", flush=True)
        finally:
            browser.driver.quit()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
