"""mypy and pyright, both strict, over a program that gives tensors of torch to the package."""

import pathlib
import subprocess
import sys

import pytest

TYPED = pathlib.Path(__file__).resolve().parents[2] / "python/typed"


@pytest.mark.parametrize("check", [["mypy", "--strict", "--no-incremental"], ["pyright", "--pythonpath", sys.executable]], ids=lambda c: c[0])
def test_callers_with_torch(check):
    done = subprocess.run([sys.executable, "-m", *check, "torch_caller.py"], cwd=TYPED, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
