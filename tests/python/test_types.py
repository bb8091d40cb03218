"""mypy and pyright, both strict, over programs that call the package."""

import json
import pathlib
import re
import subprocess
import sys

import pytest

TYPED = pathlib.Path(__file__).parent / "typed"


def mypy(*files):
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--no-incremental", *files], cwd=TYPED, capture_output=True, text=True)
    return {(m[1], int(m[2])) for m in re.finditer(r"^([\w.]+):(\d+): error", done.stdout, re.M)}, done.stdout + done.stderr


def pyright(*files):
    done = subprocess.run([sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, *files], cwd=TYPED,
                          capture_output=True, text=True)
    try:
        found = json.loads(done.stdout)["generalDiagnostics"]
    except ValueError:
        raise AssertionError(done.stdout + done.stderr) from None
    return {(pathlib.Path(e["file"]).name, e["range"]["start"]["line"] + 1) for e in found if e["severity"] == "error"}, done.stdout


@pytest.mark.parametrize("check", [mypy, pyright])
def test_callers_with_numpy(check):
    errors, text = check("numpy_caller.py", "mistakes.py")
    lines = (TYPED / "mistakes.py").read_text().splitlines()
    assert errors == {("mistakes.py", n) for n, line in enumerate(lines, 1) if line.endswith("# refused")}, text
