#!/usr/bin/env python3
"""Validates documents with Python's jsonschema that random walks over masks produced
(tests/grammar/json_schema_test.cpp, tests/chat/tagged_calls_test.cpp).

    schema_walks.py PROGRAM [TEST]  runs the test of a test program for its documents. Exit status 77: jsonschema is missing.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

root = pathlib.Path(__file__).resolve().parents[2]


def python_with_jsonschema():
    for python in (os.environ.get("NIBBLE_PYTHON"), root / ".venv/bin/python", sys.executable):
        if python and subprocess.run([python, "-c", "import jsonschema"], capture_output=True).returncode == 0:
            return str(python)
    return None


def main():
    try:
        import jsonschema
    except ImportError:
        python = python_with_jsonschema()
        if python is None:
            print("no Python with jsonschema: skipped")
            return 77
        return subprocess.run([python, __file__] + sys.argv[1:]).returncode
    schemas = [json.loads(line) for line in open(root / "tests/data/grammar/schemas.jsonl", encoding="utf-8")]
    validators = []
    for schema in schemas:
        jsonschema.Draft202012Validator.check_schema(schema)
        checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
        validators.append(jsonschema.Draft202012Validator(schema, format_checker=checker))
    with tempfile.TemporaryDirectory() as folder:
        walks = os.path.join(folder, "walks")
        subprocess.run([sys.argv[1], "--gtest_filter=" + (sys.argv[2:] + ["SchemaWalks.EndInDocuments"])[0]], check=True,
                       stdout=subprocess.DEVNULL, env={**os.environ, "NIBBLE_WALKS": walks})
        lines = open(walks, encoding="utf-8", newline="\n").read().split("\n")[:-1]
    judged = [0] * len(schemas)
    wrong = 0
    for line in lines:
        index, text = line.split("\t", 1)
        index, text = int(index), json.loads(text)
        document = json.loads(text)
        judged[index] += 1
        for error in validators[index].iter_errors(document):
            wrong += 1
            print(f"schema {index} {json.dumps(schemas[index])}\n  document {text}\n  {error.message}")
    # A validator that rejects nothing would accept everything.
    doubtful = [v for v in validators if not v.is_valid({"no": ["such", 1e300]}) or not v.is_valid("\u0000")]
    print(f"{len(lines)} documents of {len(schemas)} schemas, {wrong} errors")
    if min(judged) == 0 or len(doubtful) < len(schemas) - 5:
        print("a schema without documents, or a judge that refuses nothing", judged)
        return 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
