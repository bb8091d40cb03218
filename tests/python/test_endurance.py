"""Many calls do not grow the process; Ctrl-C ends a long call at once."""

import gc
import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
from test_weights import chat_model  # noqa: F401  (a fixture)

import nibble


def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096


def growth(call, warm, calls):
    """Bytes by which the process grows over the calls, after some to warm up."""
    for _ in range(warm):
        call()
    gc.collect()
    before = resident()
    for _ in range(calls):
        call()
    gc.collect()
    return resident() - before


X = np.random.default_rng(0).standard_normal((16, 64)).astype(np.float32)


def refused():
    try:
        nibble.quantize(X, "no_format")
    except nibble.NibbleError:
        pass


@pytest.mark.parametrize("call", [
    lambda: nibble.quantize(X), lambda: nibble.quantize(X, "mxfp8").dequantize(), lambda: nibble.swizzle(np.zeros((16, 4), np.uint8)),
    lambda: nibble.matmul(X, nibble.quantize(X)), refused], ids=["quantize", "dequantize", "swizzle", "matmul", "refused"])
def test_a_hundred_thousand_calls_keep_the_memory(call):
    assert growth(call, 5000, 100_000) < 2 << 20


def test_answers_and_models_keep_the_memory(chat_model):  # noqa: F811
    params = nibble.SamplingParams(temperature=0, max_tokens=2)
    with nibble.LLM(chat_model) as llm:
        assert growth(lambda: llm.generate(["a b c"] * 8, params), 50, 500) < 8 << 20

    def open_and_close():
        nibble.LLM(chat_model, kv_memory="16MB").close()

    assert growth(open_and_close, 10, 60) < 16 << 20


CALLS = {
    "generate": """
        llm = nibble.LLM(sys.argv[1])
        begin()
        llm.generate(["text"] * 2000, nibble.SamplingParams(max_tokens=500, ignore_eos=True))""",
    "evaluate": """
        open(sys.argv[2] + "/t.txt", "w").write("hello world " * 40000)
        begin()
        while True:  # one evaluation takes less than a second on some machines
            nibble.evaluate(sys.argv[1], text=sys.argv[2] + "/t.txt")""",
    "tokenize a prompt": """
        llm, text = nibble.LLM(sys.argv[1]), "hello world\\n" * 300_000
        begin()
        while True:
            llm.get_tokenizer().encode(text)""",
    "tokenize a conversation": """
        llm, text = nibble.LLM(sys.argv[1]), "hello world\\n" * 800_000
        begin()
        while True:
            try:
                llm.chat([{"role": "user", "content": text}])
            except nibble.UsageError:  # the context is shorter
                pass""",
    "tokenize for evaluate": """
        open(sys.argv[2] + "/t.txt", "w").write("hello world\\n" * 300_000)
        begin()
        while True:
            nibble.evaluate(sys.argv[1], text=sys.argv[2] + "/t.txt", chunks=1)""",
    "tokenize for calibrate": """
        open(sys.argv[2] + "/t.txt", "w").write("hello world\\n" * 300_000)
        begin()
        nibble.quantize_checkpoint(sys.argv[1], sys.argv[2] + "/out", "nvfp4", calib_file=sys.argv[2] + "/t.txt",
                                   calib_tokens=10_000_000)""",
    "train": """
        open(sys.argv[2] + "/t.txt", "w").write("hello world " * 4000)
        begin()
        nibble.train({"model": sys.argv[1], "output": sys.argv[2] + "/run", "steps": 100000, "batch": 1, "sequence": 32,
                      "data": {"text": sys.argv[2] + "/t.txt"}})""",
}


@pytest.mark.parametrize("name", CALLS)
def test_ctrl_c_ends_a_long_call_within_100_ms(name, chat_model, tmp_path):  # noqa: F811
    program = textwrap.dedent("""
        import sys, time, threading, nibble
        def begin():
            print("begun", flush=True)
        try:
        {call}
        except KeyboardInterrupt:
            print(time.monotonic(), flush=True)
            assert nibble.quantize(memoryview(bytes(64)).cast("f")).format == "nvfp4", "the process is usable"
            sys.exit(0)
        sys.exit(5)
    """).replace("{call}", textwrap.indent(textwrap.dedent(CALLS[name]).strip(), "    "))
    waits = []
    for attempt in range(3):  # the machine may be busy
        folder = tmp_path / str(attempt)
        folder.mkdir()
        process = subprocess.Popen([sys.executable, "-c", program, chat_model, folder], stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "begun\n"
        time.sleep(1.0)
        assert process.poll() is None, "the call ended before the signal"
        sent = time.monotonic()
        os.kill(process.pid, signal.SIGINT)
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        waits.append(float(out) - sent)
        if waits[-1] < 0.1:
            return
    raise AssertionError(f"seconds from the signal to the exception: {waits}")
