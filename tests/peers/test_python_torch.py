"""Runs the tests of the Python package that need torch and lm-eval (tests/peers/python), over the wheel of the build.

    test_python_torch.py NIBBLE

NIBBLE is the program of a build tree that has the Python module (make wheel). Exit status 77: the tree has none.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

program = pathlib.Path(sys.argv[1]).resolve()
root = pathlib.Path(__file__).resolve().parents[2]
if not (program.parent / "python/nibble/_core.abi3.so").exists():
    print("skipped: the build tree has no Python module (make wheel)")
    sys.exit(77)
subprocess.run([root / "tools/make-wheel", program.parent], check=True, stdout=subprocess.DEVNULL)
with tempfile.TemporaryDirectory() as folder:
    wheel = next((program.parent / "wheel").glob("*.whl"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", folder]
    subprocess.run([*pip, "--no-deps", str(wheel)], check=True)
    subprocess.run([*pip, "--no-deps", "nanobind-backend==1.0.0", "pytest", "pluggy", "iniconfig", "packaging", "pygments", "mypy",
                    "mypy_extensions", "pathspec", "librt", "ast-serialize"], check=True)
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", root / "tests/peers/python"],
                          env={**os.environ, "PYTHONPATH": folder, "NIBBLE_PROGRAM": str(program)})
sys.exit(done.returncode)
