"""mypy, strict, over a program that gives tensors of torch to the package."""

import pathlib
import subprocess
import sys

TYPED = pathlib.Path(__file__).resolve().parents[2] / "python/typed"


def test_callers_with_torch():
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--no-incremental", "torch_caller.py"], cwd=TYPED, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
