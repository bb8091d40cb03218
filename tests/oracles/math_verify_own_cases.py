#!/usr/bin/env python3
"""Runs nibble's answer checker on the cases of math-verify's own tests, from its source package on PyPI.

    tests/oracles/math_verify_own_cases.py build/cpu/tests/test_rl [FOLDER of an unpacked math_verify-0.9.0]

Without a folder `pip download` fetches the source package (network). The tables of the tests (gold, pred, expected) are
read as syntax: math-verify and pytest are not imported, and nothing of them is kept. test_rl reports the number of
equal verdicts by table (MathAnswer.OwnCasesOfMathVerify) and fails below its minimum.
"""
import ast
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile

VERSION = "0.9.0"


def unpacked(folder):
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "math-verify",
                    f"math-verify=={VERSION}", "-d", folder], check=True)
    with tarfile.open(next(pathlib.Path(folder).glob("*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    return pathlib.Path(folder) / f"math_verify-{VERSION}"


def value_of(node):
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def rows_of(function):
    """Returns the rows of its pytest.mark.parametrize(names, rows) as dictionaries."""
    for mark in function.decorator_list:
        if not (isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.parametrize"):
            continue
        names = value_of(mark.args[0])
        names = [n.strip() for n in names.split(",")] if isinstance(names, str) else names
        for row in mark.args[1].elts:
            values = [value_of(x) for x in row.elts] if isinstance(row, ast.Tuple) else [None] * len(names)
            yield dict(zip(names, values))


def cases(folder):
    for file in sorted((folder / "tests").glob("test_*.py")):
        for function in ast.walk(ast.parse(file.read_text(encoding="utf8"))):
            if not isinstance(function, ast.FunctionDef):
                continue
            for row in rows_of(function):
                same = row.get("expected", row.get("result"))
                if isinstance(row.get("gold"), str) and isinstance(row.get("pred"), str) and same in (0, 1):
                    yield {"table": f"{file.stem}.{function.name}", "gold": row["gold"], "pred": row["pred"], "same": bool(same)}


def main():
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else unpacked(scratch)
        file = os.path.join(scratch, "cases.json")
        with open(file, "w", encoding="utf8") as out:
            json.dump(list(cases(folder)), out)
        command = [os.path.abspath(sys.argv[1]), "--gtest_filter=MathAnswer.OwnCasesOfMathVerify"]
        return subprocess.run(command, env={**os.environ, "NIBBLE_MATH_CASES": file}).returncode


if __name__ == "__main__":
    sys.exit(main())
