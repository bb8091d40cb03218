#!/usr/bin/env python3
"""Checks the pages of the repository: `pages.py [NIBBLE] [--page GUIDE]`

Without the program: links and anchors lead somewhere, files that are named exist, every page is reachable, README.md and
hand-written pages of docs have at most WORDS words. With it: commands and flags that pages show exist, and the shell blocks of every page run.

A block of shell commands (```sh) runs in a folder with the model `smollm2` (here a made-up one) and with fewer training steps. A block after `<!-- run by hand: REASON -->` is not run; its commands and flags are checked. `<!-- result: COMMAND -->` after a block
is a command that must succeed then; readers do not see it.
"""
import argparse
import gzip
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORDS = 25000
SECONDS = 300  # limit of one page; a page takes a few on a quiet machine
GENERATED = {"reference", "supported-models.md"}
PAGES = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "containers/README.md")] + sorted((ROOT / "docs").rglob("*.md"))

problems = []


def problem(page, text):
    problems.append(f"{page.relative_to(ROOT) if isinstance(page, Path) else page}: {text}")


def generated(page):
    return page.is_relative_to(ROOT / "docs") and page.relative_to(ROOT / "docs").parts[0] in GENERATED


def blocks(text):
    """Yields (language, lines, the line before the block) of every fenced block."""
    language, lines, before, last = None, [], "", ""
    for line in text.splitlines():
        if line.startswith("```"):
            if language is None:
                language, lines, before = line[3:].strip(), [], last
            else:
                yield language, lines, before
                language = None
        elif language is not None:
            lines.append(line)
        elif line.strip():
            last = line
    assert language is None, "a block without an end"


def prose(text):
    return re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)


def anchors(text):
    """Returns the anchors of a page's headings as GitHub makes them."""
    found = set()
    for title in re.findall(r"^#+ (.*)$", prose(text), re.M):
        title = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", title).strip().lower()
        found.add(re.sub(r"[^\w\- ]", "", title).replace(" ", "-"))
    return found


def words(text):
    """Counts the words that people wrote: tables of results are rendered from data (tools/render-results)."""
    text = re.sub(r"<!-- table -->.*?<!-- end of table -->", "", text, flags=re.S)
    return sum(1 for word in text.split() if re.search(r"[A-Za-z0-9]", word))


def check_links():
    linked, links = {ROOT / "README.md", ROOT / "docs/index.md"}, 0
    for page in PAGES:
        text = page.read_text()
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", prose(text))):
            if re.match(r"[a-z]+:", target):
                continue
            links += 1
            path, _, anchor = target.partition("#")
            to = (page.parent / path).resolve() if path else page
            if not to.exists():
                problem(page, f"links to {target}, which does not exist")
                continue
            linked.add(to)
            if anchor and to.suffix == ".md" and anchor not in anchors(to.read_text()):
                problem(page, f"links to {target}; {to.name} has no such heading")
    for page in PAGES:
        if page.is_relative_to(ROOT / "docs") and page not in linked:
            problem(page, "no page links to it")
    assert links > 100, links


def check_files():
    """Files that code spans name: `nibble/quant/plan.h`, and `quant/plan.h`, which is below nibble/."""
    top, files = {"nibble", "tests", "tools", "docs", "cmake", "bench", "recipes", "include", "containers"}, 0
    for page in PAGES:
        if generated(page) or page.name == "CHANGELOG.md":
            continue
        for code in re.findall(r"`([^`\n]+)`", prose(page.read_text())):
            first = code.split(" ")[0].split("(")[0]
            if not re.fullmatch(r"[\w.-]+(/[\w.-]+)+/?", first):
                continue
            folder = first.split("/")[0]
            below = folder not in top and (ROOT / "nibble" / folder).exists() and "." in Path(first).name
            if folder not in top and not below:
                continue
            files += 1
            if not (ROOT / first).exists() and not (ROOT / "nibble" / first).exists():
                problem(page, f"names {first}, which does not exist")
    assert files > 100, files


def check_words():
    counts = {page: words(page.read_text()) for page in PAGES if not generated(page) and (page.name == "README.md" or page.is_relative_to(ROOT / "docs"))}
    del counts[ROOT / "containers/README.md"]
    total = sum(counts.values())
    if total > WORDS:
        problem("pages", f"{total} words, at most {WORDS}: " + ", ".join(f"{p.name} {n}" for p, n in sorted(counts.items(), key=lambda x: -x[1])[:8]))
    return total


def check_messages():
    """The messages of docs/troubleshooting.md are texts of the sources."""
    sources = "".join(path.read_text(errors="replace") for path in sorted((ROOT / "nibble").rglob("*")) if path.suffix in (".cpp", ".h"))
    sources = re.sub(r'"\s+"', "", sources)
    page, checked = ROOT / "docs/troubleshooting.md", 0
    for line in page.read_text().splitlines():
        if not line.startswith("| ") or line.startswith("| message"):
            continue
        for message in re.findall(r"`([^`]+)`", line.split(" | ")[0]):
            for part in re.split(r" ?(?:\.\.\.|'?\b[A-Z]\b'?):? ?", message):
                if " " in part or "_" in part:
                    checked += 1
                    if part.strip() not in sources:
                        problem(page, f"no source has the message `{part}`")
    assert checked > 30, checked


# ---- With the program ------------------------------------------------------------------------------------------------


def command_flags(nibble):
    """Returns the flags of every command, from its help."""
    found = {}

    def add(command):
        text = subprocess.run([nibble, *command, "--help"], capture_output=True, text=True, check=True).stdout
        options = text.split("\nExample", 1)[0]
        found[" ".join(command)] = set(re.findall(r"(?<![\w-])(--?[a-zA-Z][\w-]*)", options))
        if "\nSubcommands:\n" in text:
            for line in text.split("\nSubcommands:\n", 1)[1].split("\n\n", 1)[0].splitlines():
                if re.match(r"  \S", line):
                    add([*command, line.split()[0]])

    add([])
    return found


def check_commands(flags):
    """Commands and flags in code blocks and spans."""
    checked = 0
    for page in PAGES:
        if generated(page):
            continue
        text = page.read_text()
        lines = [span for span in re.findall(r"`([^`\n]+)`", prose(text))]
        for language, block, _ in blocks(text):
            if language in ("sh", "console", ""):
                joined = re.sub(r"\\\n\s*", "", "\n".join(block))
                lines += [line.removeprefix("$ ") for line in joined.splitlines() if language != "console" or line.startswith("$ ")]
        for line in lines:
            for part in re.findall(r"(?:^|[|;&(] *)(?:build/\w+/)?nibble ((?:[a-z][\w-]*)[^|;&#]*)", line):
                given = part.split()
                command = " ".join(given[:2]) if " ".join(given[:2]) in flags else given[0]
                if command not in flags:
                    problem(page, f"nibble {given[0]}: no such command, in `{line}`")
                    continue
                checked += 1
                text_free = re.sub(r"'[^']*'|\"[^\"]*\"", "", part)
                for flag in re.findall(r"(?<=\s)(--[a-z][\w-]*|-[a-z])\b", text_free):
                    if flag not in flags[command]:
                        problem(page, f"nibble {command} has no flag {flag}, in `{line}`")
    assert checked > 60, checked


def script_of(page):
    """Returns the shell script of a page, or nothing if it has none to run."""
    lines, runs, text = [], False, page.read_text()
    for match in re.finditer(r"(?P<before>[^\n]*)\n+```sh\n(?P<body>.*?)^```|<!-- result: (?P<result>.*?) -->", text, re.S | re.M):
        if match["result"]:
            lines.append(match["result"])
        elif not match["before"].startswith("<!-- run by hand"):
            lines.append(match["body"])
            runs = True
    return "\n".join(lines) if runs else ""


CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "hidden_size": 128, "intermediate_size": 384,
          "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "rms_norm_eps": 1e-05, "hidden_act": "silu",
          "max_position_embeddings": 2048, "rope_theta": 10000.0, "tie_word_embeddings": True}  # fmt: skip
# Pages whose commands need the vocabulary of a published model: GGUF files name its tokenizer, clients send its tokens.
PUBLISHED_VOCABULARY = {"convert", "serve"}


def make_model(nibble, work, published):
    """A model of random weights whose rows are whole blocks of every format, in work/small or work/published, made/model."""
    work = work / ("published" if published else "small")
    start = work / "start"
    start.mkdir(parents=True)
    if published:
        (start / "tokenizer.json").write_bytes(gzip.decompress((ROOT / "tests/data/golden/tokenizers/smollm2/tokenizer.json.gz").read_bytes()))
        template = (ROOT / "tests/data/golden/chat_templates/smollm2.jinja").read_text()
        (start / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "chat_template": template}))
        tokens = {"vocab_size": 49152, "bos_token_id": 1, "eos_token_id": 2}
    else:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(ROOT / "tests/data/chat" / name, start)
        tokens = {"vocab_size": 272, "bos_token_id": 269, "eos_token_id": 271}
    (start / "config.json").write_text(json.dumps({**CONFIG, **tokens}))
    (work / "start.yaml").write_text("model: start\nrandom_start: true\noutput: made\nsteps: 1\nbatch: 1\nsequence: 8\ndata: {text: start.yaml}\n")
    subprocess.run([nibble, "train", "start.yaml", "--quiet"], cwd=work, check=True, stdout=subprocess.DEVNULL)


def run_page(page, nibble, work):
    folder = work / page.stem
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/nibble").symlink_to(nibble)
    shutil.copytree(work / ("published" if page.stem in PUBLISHED_VOCABULARY else "small") / "made/model", folder / "smollm2")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    script = re.sub(r"\b8000\b", str(port), script_of(page))
    script = re.sub(r"^(\s*steps: )\d+", r"\g<1>4", script, flags=re.M)
    script = re.sub(r"^shape: .*\nlayers: .*\n", "model: smollm2\nrandom_start: true\n", script, flags=re.M)  # an eighth of the parameters
    script = re.sub(r"\bmax_num_steps: \d+", "max_num_steps: 2", script)
    head = "set -euo pipefail\ntrap 'status=$?; jobs=$(jobs -p); [ -z \"$jobs\" ] || kill $jobs 2>/dev/null; exit $status' EXIT\n"
    env = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    process = subprocess.Popen(["bash", "-c", head + script], cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try:
        output, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        output, _ = process.communicate()
        output += f"\nafter {SECONDS} s"
    if process.returncode:
        problem(page, f"its commands end with status {process.returncode}:\n" + "\n".join(output.splitlines()[-12:]))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("nibble", nargs="?", type=Path)
    p.add_argument("--page", action="append", default=[], help="run the commands of these pages alone")
    a = p.parse_args()
    check_links()
    check_files()
    check_messages()
    total = check_words()
    ran = 0
    if a.nibble:
        nibble = a.nibble.resolve()
        check_commands(command_flags(nibble))
        pages = [page for page in PAGES if script_of(page) and (not a.page or page.stem in a.page)]
        with tempfile.TemporaryDirectory() as work, ThreadPoolExecutor(2) as pool:
            for published in (False, True):
                make_model(nibble, Path(work), published)
            list(pool.map(lambda page: run_page(page, nibble, Path(work)), pages))
        ran = len(pages)
        assert a.page or ran >= 8, f"{ran} pages have commands that run"
    for text in problems:
        print(text, file=sys.stderr)
    print(f"pages: {len(PAGES)}, {total} hand-written words, commands of {ran} pages ran, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
