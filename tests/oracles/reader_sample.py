#!/usr/bin/env python3
"""Draws comments, messages and paragraphs of pages for a review by a reader who does not know the project.

Usage: reader_sample.py SEED [COUNT]

Prints COUNT texts (default 30): three fifths are comments, a fifth messages of the program, a fifth paragraphs of pages. Each
has its file and line, and a comment the line of code that it describes. A seed gives the same list for the same commit.
"""
import ast
import random
import re
import subprocess
import sys
from pathlib import Path

import plain_words

ROOT = plain_words.ROOT
Drawn = tuple[str, int, str, str]  # file, line, text, line of code


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in sorted(listed.split("\0")) if name]


def code_of(lines: list[str], line: int) -> str:
    """Returns the code next to the comment that starts at `line`, or the first line of code after it."""
    for text in lines[line - 1 :]:
        code = re.sub(r"^\s*//.*|^\s*#.*", "", text).strip()
        if code:
            return code[:150]
    return ""


def python_messages(text: str) -> list[tuple[int, str]]:
    """Returns (line, text) of the string constants of a Python file that are neither docstrings nor single words."""
    tree = ast.parse(text)
    documents = {node.body[0].value for node in ast.walk(tree) if hasattr(node, "body") and isinstance(node.body, list)
                 and node.body and isinstance(node.body[0], ast.Expr)}  # fmt: skip
    inner = {part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    found = []
    for node in ast.walk(tree):
        whole = ast.unparse(node) if isinstance(node, ast.JoinedStr) else getattr(node, "value", None)
        if isinstance(node, (ast.Constant, ast.JoinedStr)) and isinstance(whole, str) and node not in documents | inner:
            found.append((node.lineno, whole))
    return found


def is_message(text: str) -> bool:
    """Returns true for three words or more that are not code, a path, a format string or markup."""
    words = re.findall(r"[A-Za-z]{2,}", text)
    return len(words) >= 4 and " " in text.strip() and not re.search(r"[<>;]|\\x|^[-.#/]|::", text)


def paragraphs(text: str) -> list[tuple[int, str]]:
    """Returns (line, text) of the paragraphs, list entries and rows of a page, without blocks of code and headings."""
    found: list[tuple[int, str]] = []
    block, open_at = False, 0
    for line, content in enumerate(text.splitlines(), 1):
        if content.startswith("```"):
            block, open_at = not block, 0
        elif block or not content.strip() or content.startswith(("#", "---", "|--", "![", "<")):
            open_at = 0
        elif open_at and not re.match(r"\s*([-*|]|\d+\.) ?", content):
            found[-1] = (found[-1][0], found[-1][1] + " " + content.strip())
        else:
            open_at = line
            found.append((line, content.strip()))
    return [(line, content) for line, content in found if len(content.split()) >= 6]


def population() -> dict[str, list[Drawn]]:
    all_of: dict[str, list[Drawn]] = {"comment": [], "message": [], "paragraph": []}
    pages = set(plain_words.pages()) | {ROOT / "CONTRIBUTING.md"}
    for path in tracked():
        try:
            text = path.read_text()
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue
        name, lines = str(path.relative_to(ROOT)), text.split("\n")
        if path in pages:
            all_of["paragraph"] += [(name, line, content, "") for line, content in paragraphs(text)]
        for line, comment in plain_words.comments_of(path, text):
            if len(comment.split()) >= 2 and not re.match(r"(namespace|fmt:|clang-format|NOLINT)", comment):
                all_of["comment"].append((name, line, comment, code_of(lines, line)))
        if name.startswith("nibble/") and path.suffix in plain_words.SUFFIXES:
            all_of["message"] += [(name, line, content, "") for line, content in plain_words.strings(text) if is_message(content)]
        if name.startswith("python/nibble/") and path.suffix == ".py":
            all_of["message"] += [(name, line, content, "") for line, content in python_messages(text) if is_message(content)]
    return all_of


def main() -> int:
    seed, count = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 30
    all_of, chosen = population(), random.Random(seed)
    shares = {"comment": count - 2 * (count // 5), "message": count // 5, "paragraph": count // 5}
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    print(f"seed {seed}, commit {commit}; drawn from " + ", ".join(f"{len(texts)} {kind}s" for kind, texts in all_of.items()))
    number = 0
    for kind, texts in all_of.items():
        for name, line, text, code in chosen.sample(texts, shares[kind]):
            number += 1
            print(f"\n{number}. {kind} {name}:{line}\n    {text}" + (f"\n    code: {code}" if code else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
