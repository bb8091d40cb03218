#!/usr/bin/env python3
"""Compares the tokens of `nibble data build` for Parquet files (read through pyarrow) with those of the same rows as
JSON Lines. usage: test_parquet.py PROGRAM
"""
import json
import os
import subprocess
import sys
import tempfile

try:
    import pyarrow
    import pyarrow.parquet
except ImportError:
    sys.exit(77)

PROGRAM = os.path.abspath(sys.argv[1])
CHAT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "chat")
TURNS = [{"from": "human", "value": "hello"}, {"from": "gpt", "value": "world"}]
TABLES = {
    "text": [{"text": f"line {i} says hello", "other": i} for i in range(1000)],
    "sharegpt": [{"id": str(i), "conversations": TURNS} for i in range(300)],
    "alpaca": [{"instruction": "add", "input": f"{i}", "output": None if i == 7 else "sum"} for i in range(20) if i != 7],
    "null": [{"text": None if i % 2 else "hello", "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}] if i % 2 else None} for i in range(10)],
}


def build(folder, name, *more):
    out = os.path.join(folder, name + ".out")
    environment = dict(os.environ, PATH=os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"])
    command = [PROGRAM, "data", "build", os.path.join(folder, name), "-o", out, "--tokenizer", CHAT, "--quiet", *more]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
    if done.returncode:
        return done.stderr
    return {f: open(os.path.join(out, f), "rb").read() for f in sorted(os.listdir(out)) if f != "data.json"}


with tempfile.TemporaryDirectory() as folder:
    for name, rows in TABLES.items():
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), os.path.join(folder, name + ".parquet"), row_group_size=128)
        with open(os.path.join(folder, name + ".jsonl"), "w") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        got, want = build(folder, name + ".parquet"), build(folder, name + ".jsonl")
        assert isinstance(want, dict), want
        assert got == want, (name, got if isinstance(got, str) else "other bytes")
    with open(os.path.join(folder, "json.py"), "w") as file:
        file.write("raise SystemExit('a module of the working folder was loaded')")
    os.remove(os.path.join(folder, "text.parquet.out", "data.json"))
    subprocess.run(["rm", "-r", os.path.join(folder, "text.parquet.out")], check=True)
    assert isinstance(build(folder, "text.parquet"), dict)
    pyarrow.parquet.write_table(pyarrow.table({"a": [1], "b": [2]}), os.path.join(folder, "other.parquet"))
    assert "has the columns a, b; none of them is known" in build(folder, "other.parquet")
    data = open(os.path.join(folder, "alpaca.parquet"), "rb").read()
    open(os.path.join(folder, "cut.parquet"), "wb").write(data[: len(data) // 2])
    assert build(folder, "cut.parquet").startswith("nibble: "), "a file that is cut short"
print("Parquet files give the tokens of their rows")
