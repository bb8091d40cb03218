"""Runs the calling script with the Python of .venv if the current Python lacks a required package.

    import own_packages
    own_packages.need("numpy", "ml_dtypes")     exit status 77 if .venv lacks it too (tools/setup --test creates .venv)
"""
import importlib.util
import os
import sys

PYTHON = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", ".venv", "bin", "python")


def need(*packages):
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if not missing:
        return
    if os.path.exists(PYTHON) and not os.environ.get("NIBBLE_IN_VENV"):
        os.execve(PYTHON, [PYTHON, *sys.argv], {**os.environ, "NIBBLE_IN_VENV": "1"})
    print("these packages are not installed:", *missing)
    sys.exit(77)
