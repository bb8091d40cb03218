"""Runs commands that run out of memory: `out_of_memory.py build/cpu/nibble`

The address space is limited (RLIMIT_AS) to many sizes below the smallest sufficient one. For each size a command must
print one line on stderr and end with status 1, without a crash and without output under its final name. Finished parts
of a job are resumed to the same bytes. Needs only Python's standard library.
"""
import hashlib
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

HERE = pathlib.Path(__file__).resolve().parent
DATA = HERE.parent / "data"
MODEL, CHAT = DATA / "model", DATA / "chat"
MEGA = 1 << 20
SIZES = 40  # number of limits per command
SECONDS = 120


def limited(command, folder, limit=None):
    def limit_memory():
        if limit:
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    return subprocess.run(command, cwd=folder, preexec_fn=limit_memory, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                          timeout=SECONDS)


def content(folder):
    """Returns hashes of weights and configuration; other documents contain times and the command."""
    files = sorted(p for p in pathlib.Path(folder).iterdir() if p.suffix == ".safetensors" or p.name in ("config.json", "tokenizer.json"))
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def least_limit(command, folder, clean):
    """Returns the smallest limit in megabytes with which the command succeeds."""
    low, high = 1, 16384
    while high - low > 2:
        middle = (low + high) // 2
        clean()
        if limited(command, folder, middle * MEGA).returncode == 0:
            high = middle
        else:
            low = middle
    return high


def check_command(name, command, folder, least, output=None, resumes=False):
    def clean():
        for path in pathlib.Path(folder).iterdir():
            if path.name.startswith("out"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    clean()
    whole = limited(command, folder)
    assert whole.returncode == 0, f"{name}: {whole.stderr}"
    expected = content(pathlib.Path(folder) / output) if output else None
    enough = least_limit(command, folder, clean)
    failed = unreported = 0
    for i in range(SIZES):
        limit = int((least + (enough - least) * i / SIZES) * MEGA)
        clean()
        done = limited(command, folder, limit)
        said = done.stderr.splitlines()
        where = f"{name} with {limit / MEGA:.1f} of {enough} MB: status {done.returncode}: {done.stderr[-500:]}"
        if done.returncode == -signal.SIGSEGV:  # the stack of the main thread cannot grow; nothing can report that
            unreported += 1
        else:
            assert done.returncode in (0, 1), where
        if done.returncode == 0:
            assert not output or content(pathlib.Path(folder) / output) == expected, where
            continue
        failed += 1
        assert done.returncode < 0 or said and said[-1].startswith("nibble: ") and sum(line.startswith("nibble: ") for line in said) == 1, where
        if output:
            assert not (pathlib.Path(folder) / output).exists(), where
        if resumes:
            again = limited([*command, "--resume"], folder)
            assert again.returncode == 0, f"{where}; resumed: {again.stderr}"
            assert content(pathlib.Path(folder) / output) == expected, where
    clean()
    assert unreported <= 3, f"{name}: {unreported} of {SIZES} runs ended without a word"
    return failed


def test_commands(program):
    text = "A text to calibrate with, and to measure. " * 40
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "text").write_text(text)
        failed = 0
        least = least_limit([program, "--version"], folder, lambda: None)  # below this limit the program does not start
        # With --quiet the error is the only line. All use two threads, so that limits are comparable between machines.
        for name, words, output, resumes in (
                ("quantize", ["quantize", MODEL, "-o", "out", "--recipe", "w4a16_nvfp4", "--threads", "2", "--quiet"], "out", True),
                ("calibrated", ["quantize", CHAT, "-o", "out", "--recipe", "nvfp4", "--calib", "text", "--calib-tokens", "64", "--threads", "2", "--quiet"],
                 "out", True),
                ("convert", ["convert", MODEL, "-o", "out", "--format", "bf16", "--threads", "2", "--quiet"], "out", False),
                ("generate", ["generate", CHAT, "hello", "--max-tokens", "4", "--kv-memory", "64MB", "--threads", "2", "--quiet"], None, False),
                ("eval", ["eval", CHAT, "--text", "text", "--threads", "2", "--quiet"], None, False)):
            failed += check_command(name, [program, *map(str, words)], folder, least, output, resumes)
        assert failed > 30, f"only {failed} commands failed"


def test_server(program):
    """A server without enough memory ends with one line; it never hangs and never ends by a signal."""
    command = [program, "serve", str(CHAT), "--port", "0", "--threads", "2", "--kv-memory", "64MB"]
    ended = served = 0
    for megabytes in range(48, 512, 6):
        limit = megabytes * MEGA
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
                                  preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
        watch = threading.Timer(SECONDS, server.kill)
        watch.start()
        said = []
        for line in server.stderr:
            said.append(line)
            if "is served at" in line:
                server.terminate()
        status = server.wait()
        watch.cancel()
        where = f"serve with {megabytes} MB: status {status}: {''.join(said)[-500:]}"
        assert status in (0, 1), where
        if status == 0:
            served += 1
        elif any(line.startswith("nibble: ") for line in said):
            ended += 1
            assert said[-1].startswith("nibble: "), where
        if served == 3:
            break
    assert ended >= 5 and served == 3, f"{ended} servers ended with an error, {served} served"


def main():
    program, failed = os.path.abspath(sys.argv[1]), 0
    for name, test in list(globals().items()):
        if not name.startswith("test_"):
            continue
        try:
            test(program)
            print(f"{name}: passed", flush=True)
        except Exception as error:
            failed += 1
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
