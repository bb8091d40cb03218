"""Starts nibble servers for other programs, each of which is installed into an environment of its own below
.cache/load_tools.
"""
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "load_tools"
MODEL = ROOT / "tests" / "data" / "chat"
SECONDS = 300
# A chat template that supports tools.
TEMPLATE = ("{% if tools %}<s>system\n{{ tools | tojson }}<tool_call>{\"name\": f}</tool_call><mask>{% endif %}"
            "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] or '' }}"
            "{% for c in m['tool_calls'] or [] %}{{ c['function'] | tojson }}{% endfor %}<mask>{% endfor %}"
            "{% if add_generation_prompt %}<s>assistant\n{% endif %}")


class Skipped(Exception):
    """A requirement of a test is not available."""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    def __init__(self, program, folder, log=None):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = subprocess.Popen([program, "serve", folder, "--port", str(self.port), "--kv-memory", "64MB", "--served-model-name", "tiny",
                                         *([] if log else ["--quiet"])], stderr=log)
        wait_for(self.url + "/health")

    def stop(self):
        self.process.terminate()
        assert self.process.wait(SECONDS) == 0


def get(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode()


def wait_for(url, wanted=lambda text: True):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            if wanted(get(url)):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            pass
        time.sleep(0.1)
    raise AssertionError(f"{url} did not answer as expected within 60 s")


def python_for(name):
    least = {"inference-perf": (3, 12)}.get(name, (3, 10))
    for python in (sys.executable, *(f"python3.{minor}" for minor in range(14, 9, -1))):
        try:
            probe = subprocess.run([python, "-c", f"import sys; sys.exit(sys.version_info < {least})"], capture_output=True)
        except FileNotFoundError:
            continue
        if probe.returncode == 0:
            return python
    raise Skipped(f"needs Python {least[0]}.{least[1]}")


def environment(name, package):
    folder = CACHE / name
    stamp = folder / "package.stamp"
    if not (stamp.exists() and stamp.read_text() == package):
        CACHE.mkdir(parents=True, exist_ok=True)
        if shutil.which("uv"):  # minutes where pip needs most of an hour
            make = ["uv", "venv", "--quiet", "--seed", "--clear", "--python", python_for(name), folder]
            install = ["uv", "pip", "install", "--quiet", "--python", folder / "bin" / "python"]
        else:
            make = [python_for(name), "-m", "venv", "--clear", folder]
            install = [folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run(make, check=True)
        pip = subprocess.run([*install, *package.split()], text=True, capture_output=True)
        if pip.returncode:
            raise Skipped(f"pip cannot install {package}: {pip.stderr.strip().splitlines()[-1] if pip.stderr.strip() else pip.returncode}")
        stamp.write_text(package)
    return folder / "bin"


def model_folder(folder, context, template=None):
    """Copies tests/data/chat with another context length and chat template."""
    shutil.copytree(MODEL, folder)
    changes = [("config.json", {"max_position_embeddings": context})]
    if template:
        changes.append(("tokenizer_config.json", {"chat_template": template}))
    for name, more in changes:
        path = pathlib.Path(folder) / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **more}))
    return str(folder)


def run_tests(tests):
    """Runs functions by name and reports their results. Returns the exit status: 77 if none could run."""
    word = sys.argv[2] if len(sys.argv) > 2 else ""
    failed = passed = 0
    for name, test in tests.items():
        if word not in name:
            continue
        try:
            said = test()
            passed += 1
            print(f"{name}: passed" + (f" ({said})" if said else ""), flush=True)
        except Skipped as why:
            print(f"{name}: skipped: {why}", flush=True)
        except Exception as error:
            failed += 1
            print(f"{name}: FAILED: {type(error).__name__}: {error}", flush=True)
    return 1 if failed else 0 if passed else 77
