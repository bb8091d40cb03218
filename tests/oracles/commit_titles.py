#!/usr/bin/env python3
"""Checks tools/check-titles on clones: `commit_titles.py`

A title of 72 characters passes and one of 73 fails, counted in characters. A shallow clone, a clone whose history lacks the
recorded commit, and a folder without git give different errors.
"""
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools" / "check-titles"
ENV = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CEILING_DIRECTORIES": tempfile.gettempdir(),
       **{f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in (("NAME", "t"), ("EMAIL", "t@t"))}}  # fmt: skip


def run(*words, cwd):
    return subprocess.run(list(map(str, words)), cwd=cwd, env=ENV, capture_output=True, text=True)


def git(*words, cwd):
    done = run("git", *words, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def check(folder, first):
    return run(folder / "tools" / "check-titles", first, cwd=folder)


with tempfile.TemporaryDirectory() as work:
    tree = Path(work) / "tree"
    (tree / "tools").mkdir(parents=True)
    shutil.copy(TOOL, tree / "tools")
    missing = check(tree, "0" * 40)
    assert missing.returncode == 0 and "not a git clone" in missing.stdout, missing
    git("init", "-q", cwd=tree)
    git("add", ".", cwd=tree)
    git("commit", "-q", "-m", "x" * 90, cwd=tree)
    first = git("rev-parse", "HEAD", cwd=tree)
    git("commit", "-q", "--allow-empty", "-m", "é" * 72, cwd=tree)
    assert check(tree, first).returncode == 0, "titles before the recorded commit do not count; 72 characters pass"
    git("commit", "-q", "--allow-empty", "-m", "y" * 73, "-m", "a body " * 30, cwd=tree)
    long = check(tree, first)
    assert long.returncode == 1 and "73 characters" in long.stderr and "y" * 73 in long.stderr, long
    unknown = check(tree, "1" * 40)
    assert unknown.returncode == 1 and "is not in the history" in unknown.stderr, unknown
    shallow = Path(work) / "shallow"
    git("clone", "-q", "--depth", "1", f"file://{tree}", str(shallow), cwd=work)
    skipped = check(shallow, first)
    assert skipped.returncode == 0 and "shallow clone" in skipped.stdout, skipped
print("commit titles: 6 cases")
