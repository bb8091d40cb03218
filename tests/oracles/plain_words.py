#!/usr/bin/env python3
"""Checks that comments, messages and pages use plain technical English (CONTRIBUTING.md, Language).

Usage: plain_words.py [FOLDER ...]   default: the folders that are converted (FOLDERS) and the pages (README.md, docs). Prints
file:line: rule: text. Strings are checked in the folders of MESSAGES only.
"""
import ast
import io
import re
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Folders whose comments follow the rules, with all folders below them. Add a folder once its comments are rewritten.
FOLDERS = [
    "include/nibble",
    "bench", "nibble/architecture", "nibble/base", "nibble/gpu_bench", "nibble/chat", "nibble/checkpoint", "nibble/cli",
    "nibble/data", "nibble/eval", "nibble/formats", "nibble/grammar", "nibble/http", "nibble/io", "nibble/jobs",
    "nibble/kernels", "nibble/measure", "nibble/model", "nibble/page", "nibble/parallel", "nibble/quant", "nibble/rl",
    "nibble/run", "nibble/engine", "nibble/server", "nibble/tensor", "nibble/text", "nibble/train",
    "tests/base", "tests/chat", "tests/checkpoint", "tests/cli", "tests/cuda", "tests/device", "tests/eval",
    "tests/formats", "tests/fuzz", "tests/grammar", "tests/http", "tests/install", "tests/io", "tests/jobs",
    "tests/kernels", "tests/model", "tests/oracles", "tests/page", "tests/parallel", "tests/peers", "tests/quant",
    "tests/rl", "tests/engine", "tests/server", "tests/support", "tests/tensor", "tests/text", "tests/train", "tools",
    "cmake", "CMakeLists.txt", "python", "tests/CMakeLists.txt", "tests/c", "tests/python", "tests/preload",
]  # fmt: skip

# Folders whose messages follow the rules too: every string literal of two words or more is checked.
MESSAGES = [
    "include/nibble",
    "nibble/architecture", "nibble/chat", "nibble/checkpoint", "nibble/cli", "nibble/data",
    "nibble/engine", "nibble/formats", "nibble/gpu_bench", "nibble/io", "nibble/jobs",
    "nibble/kernels", "nibble/measure", "nibble/model", "nibble/page", "nibble/quant", "nibble/rl",
    "nibble/run", "nibble/server", "nibble/tensor", "nibble/train",
    "tests/chat", "tests/checkpoint", "tests/cli", "tests/cuda", "tests/device", "tests/engine", "tests/fuzz",
    "tests/install", "tests/io", "tests/jobs", "tests/model", "tests/quant", "tests/server", "tests/train",
]  # fmt: skip

# (name, pattern). Openings match the first words of a comment; words match anywhere in it.
OPENINGS = [
    ("opens with 'What', 'Of', 'Whose', 'Whether' or 'Where'", r"(?i:What|Of|Whose|Whether|Where)\b(?! if)"),
    ("opens with 'As'", r"(?i:As)\b(?! (in|above|many)\b)"),
]
WORDS = [
    ("'behind' (after, next to)", r"(?<!look-)\bbehind\b(?! (a|the) (flag|proxy|firewall))"),
    ("'beside' (with, next to, in addition to)", r"(?<!::)(?<!-)\bbeside\b"),
    ("'the way back' (the backward pass)", r"\bthe way back\b"),
    ("'told' (gets, is passed, returns)", r"\btold\b"),
    ("'in hand' (current)", r"\bin hand\b(?!-)"),
    ("'lent' (shared)", r"\blent\b"),
    ("'in turn', 'by turns' (take turns, alternate)", r"\b(in turn|by turns)\b(?!s)"),
    ("'anew' (again)", r"\banew\b"),
    ("'read aloud' (as plain loops)", r"\bread aloud\b"),
    ("'says so', 'says which' (states, returns)", r"\b(say|says|tells?) (so|which|where|whether|what|how|who|whose)\b"),
    ("'nobody', 'somebody', 'whoever' (name the subject)", r"\b(nobody|somebody|whoever)\b"),
    ("'not wanted', 'where wanted' (may be null, if given)", r"\b(null: not wanted|where (it is )?wanted|where given)\b"),
    ("'what ... of' (name the parts)", r"\bwhat [^.;:]{0,40} (is|are) made of\b"),
    ("'no more use' (unusable)", r"\bof (no|any) more use\b"),
    ("'the caller's to' (the caller must)", r"\b(caller|host)'s to\b"),
    ("'goes on' (continues, resumes)", r"\b(goes|go|went|gone) on\b"),
    ("'so many' (this many, at most N)", r"\bso many\b"),
    ("'makes of', 'comes of' (the result of)", r"\b(makes?|comes?) of\b"),
    ("'as X has it' (as in X, like X)", r"\bas \w+( \w+)? (has|have) (it|them)\b"),
    ("'in front of' (before)", r"\bin front of\b(?! (a|the) server)"),
    ("'nothing but' (only), 'but for' (except)", r"\b(nothing but|but for)\b"),
    ("'anybody', 'everybody', 'no one' (name the subject)", r"\b(anybody|everybody|no one|anyone|everyone)\b"),
    ("'hands on', 'handed to' (passes, sends)", r"\b(hands?|handed) (on|to)\b"),
    ("'is no' (is not a, is neither)", r"(?<!there )\b(is|are) no (?!longer\b|more\b|less\b|larger\b|smaller\b|faster\b|slower\b)\w+"),
    ("'has no place' (does not fit, belongs to no)", r"\b(has|have) no place\b"),
    ("'to go by' (data, information)", r"\bto go by\b"),
    ("'as it lies', 'lies ready' (is, is stored)", r"\b(as (it|they) (lie|lies)|(lie|lies) ready)\b"),
    ("a note outside the repository", r"\b(ptq|better-training|better-weights)\.md\b"),
]  # fmt: skip

# At most 20 comments that may break a rule: (end of the path, text in the comment).
EXCEPTIONS: list[tuple[str, str]] = [
    ("checkpoint/gguf_known_tokenizers.cpp", "multiple emojis concatenated"),  # llama.cpp's text that identifies a tokenizer
]

SUFFIXES = {".h", ".cpp", ".cu", ".cuh", ".inc"}
TOKEN = re.compile(r'//(?P<line>[^\n]*)|/\*(?P<block>.*?)\*/|R"\((?:.*?)\)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)


def comments(text: str) -> list[tuple[int, str]]:
    """Returns (line, text) per comment. A line that holds only a comment continues the comment above it in the same column."""
    found: list[tuple[int, str, bool, int]] = []
    for match in TOKEN.finditer(text):
        body = match.group("line") if match.group("line") is not None else match.group("block")
        if body is None:
            continue
        line = text.count("\n", 0, match.start()) + 1
        start = text.rfind("\n", 0, match.start()) + 1
        alone = not text[start : match.start()].strip()
        column = match.start() - start
        if found and alone and found[-1][3] == column and last == line - 1:
            first, before, _, _ = found[-1]
            found[-1] = (first, before + " " + body.strip(), alone, column)
        else:
            found.append((line, body.strip(), alone, column))
        last = line
    return [(line, body) for line, body, _, _ in found]


def python_comments(text: str) -> list[tuple[int, str]]:
    """Returns (line, text) of the comments and docstrings of a Python file. Adjacent lines of comments are one comment."""
    found: list[tuple[int, str]] = []
    end = (0, 0)  # line and column of the last comment that stood alone
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        (line, column), body = token.start, token.string.lstrip("#! ")
        alone = not token.line[:column].strip()
        if alone and found and end == (line - 1, column):
            found[-1] = (found[-1][0], f"{found[-1][1]} {body}")
        else:
            found.append((line, body))
        end = (line, column) if alone else (0, 0)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            if docstring := ast.get_docstring(node):
                found.append((node.body[0].lineno, docstring))
    return sorted(found)


def hash_comments(text: str) -> list[tuple[int, str]]:
    """Returns (line, text) per comment of a shell script or CMake file; adjacent lines are one comment."""
    found: list[tuple[int, str]] = []
    last = 0
    for line, content in enumerate(text.split("\n"), 1):
        if not content.strip().startswith("#"):
            continue
        body = content.strip().lstrip("#! ")
        if found and body and last == line - 1 and line > 2:
            found[-1] = (found[-1][0], f"{found[-1][1]} {body}".strip())
        else:
            found.append((line, body))
        last = line
    return found


def comments_of(path: Path, text: str) -> list[tuple[int, str]]:
    """Returns the comments of a file by its name or first line; nothing for other files."""
    first = text.split("\n", 1)[0] if text.startswith("#!") else ""
    if path.suffix in SUFFIXES:
        return comments(text)
    if path.suffix == ".py" or "python" in first:
        return python_comments(text)
    return hash_comments(text) if path.name == "CMakeLists.txt" or path.suffix == ".cmake" or first.endswith("sh") else []


def strings(text: str) -> list[tuple[int, str]]:
    """Returns (line, content) per string literal; adjacent literals are one. Raw strings are left out."""
    found: list[tuple[int, str, int]] = []
    for match in TOKEN.finditer(text):
        literal = match.group(0)
        if not literal.startswith('"'):
            continue
        if found and not text[found[-1][2] : match.start()].strip():
            first, before, _ = found[-1]
            found[-1] = (first, before + literal[1:-1], match.end())
        else:
            found.append((text.count("\n", 0, match.start()) + 1, literal[1:-1], match.end()))
    return [(line, content) for line, content, _ in found if " " in content.strip()]


def problems(text: str, messages: bool = False, path: Path = Path("a.cpp")) -> list[tuple[int, str, str]]:
    out = []
    for line, comment in comments_of(path, text):
        for name, pattern in OPENINGS:
            if re.match(pattern, comment):
                out.append((line, name, comment))
        for name, pattern in WORDS:
            if re.search(pattern, comment, re.I):
                out.append((line, name, comment))
    for line, content in strings(text) if messages else []:
        for name, pattern in WORDS:
            if re.search(pattern, content, re.I):
                out.append((line, name, content))
    return out


def page_problems(text: str) -> list[tuple[int, str, str]]:
    """Returns the listed words in the prose of a page; code spans and blocks do not count."""
    out, block = [], False
    for line, prose in enumerate(text.splitlines(), 1):
        if prose.startswith("```"):
            block = not block
        prose = "" if block else re.sub(r"`[^`]*`", "", prose)
        out += [(line, name, prose.strip()) for name, pattern in WORDS if re.search(pattern, prose, re.I)]
    return out


def pages() -> list[Path]:
    """Returns the hand-written pages, without the word list of CONTRIBUTING.md."""
    written = [path for path in sorted((ROOT / "docs").rglob("*.md")) if "reference" not in path.parts]
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "SECURITY.md", ROOT / "containers/README.md", *written]


def self_test() -> None:
    bad = ["int a;  // what it holds\n", "// Of the step.\n", "// sums lie `apart` floats behind\n", "// one\n// beside two\n",
           "// The client is told 503.\n", "// Memory that users have in turn.\n", "// As measure, of a source.\n",
           "// The run goes on with the next step.\n", "// At most so many rows.\n", "// What the cache makes of them.\n",
           "// Rounds as PyTorch has it.\n", "// Nothing but zeros.\n", "// Ranks hand on their rows.\n",
           "// Error: the name is no preset.\n", "// A bias has no place here.\n", "// Without numbers to go by.\n",
           "// Whether it ends.\n", "int a;  // of the batch\n", "int a;  // x\nint b;  // as typed\n"]  # fmt: skip
    good = ["// Returns the chain rule's factor.\n", "// A server behind a proxy.\n", 'print("what is behind");\n',
            "// As in MambaStep.\n", "// Users take turns.\n", "// Returns true if the call may end.\n",
            "// A tensor made of rows.\n", "// Computed by hand; nothing is lost.\n",
            "// There is no preset.\n", "// The file is no longer read.\n"]  # fmt: skip
    for text in bad:
        assert problems(text), f"not found: {text!r}"
    for text in good:
        assert not problems(text), f"found: {text!r} {problems(text)}"
    assert page_problems("The client is told 503.") and not page_problems("`told` is a name\n```\nbehind\n```\nA server behind a proxy.")
    for text in ('fail("the run goes " "on");\n', 'log("bytes beside {}");\n'):
        assert not problems(text) and problems(text, True), f"not found: {text!r}"
    for name, text in (("a.py", '"""Rows beside others."""\n'), ("a", "#!/usr/bin/env python3\nx = 1  # told\n"),
                       ("CMakeLists.txt", "# Of GPUs.\n"), ("a", "#!/usr/bin/env bash\n# in front of it\n")):  # fmt: skip
        assert problems(text, path=Path(name)), f"not found: {name} {text!r}"
    assert not problems("x = 'told'  # hand-written\n", path=Path("a.py"))
    for text in ('end("behind");\n', 'fail("{} rows have no label");\n', 'parse(R"(a: beside b)");\n'):
        assert not problems(text, True), f"found: {text!r}"


def main() -> int:
    self_test()
    assert len(EXCEPTIONS) <= 20, "at most 20 exceptions"
    count = 0
    for folder in sys.argv[1:] or FOLDERS:
        assert (ROOT / folder).exists(), f"{folder} does not exist"
        paths = [ROOT / folder] if (ROOT / folder).is_file() else sorted((ROOT / folder).rglob("*"))
        for path in paths:
            if not path.is_file() or "__pycache__" in path.parts:
                continue
            try:
                text = path.read_text()
            except UnicodeDecodeError:  # not a text file
                continue
            name = str(path.relative_to(ROOT))
            messages = path.suffix in SUFFIXES and name.startswith(tuple(f + "/" for f in MESSAGES))
            for line, rule, comment in problems(text, messages, path):
                if any(name.endswith(end) and part in comment for end, part in EXCEPTIONS):
                    continue
                count += 1
                print(f"{name}:{line}: {rule}: {comment[:160]}")
    for path in [] if sys.argv[1:] else pages():
        for line, rule, prose in page_problems(path.read_text()):
            count += 1
            print(f"{path.relative_to(ROOT)}:{line}: {rule}: {prose[:160]}")
    if count:
        print(f"{count} comments, messages or lines break the rules of CONTRIBUTING.md (Language)", file=sys.stderr)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
