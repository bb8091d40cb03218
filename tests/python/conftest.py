"""Fixtures of the Python package's tests. NIBBLE_PROGRAM is the program of the same build."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "oracles"))


@pytest.fixture(scope="session")
def program():
    path = os.environ.get("NIBBLE_PROGRAM", str(ROOT / "build" / "cpu" / "nibble"))
    assert os.access(path, os.X_OK), f"{path} is not built"
    return path


@pytest.fixture(scope="session")
def run_program(program):
    def run(*arguments, **options):
        return subprocess.run([program, *map(str, arguments)], check=True, capture_output=True, text=True, **options).stdout

    return run


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A small Llama with random BF16 weights and no tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "random"
    subprocess.run([sys.executable, ROOT / "tests/oracles/random_model.py", folder, "--hidden", "256", "--inner", "512",
                    "--layers", "2", "--vocab", "512"], check=True, capture_output=True)
    return folder
