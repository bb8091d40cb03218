"""Gives hostile inputs to the program: `hostile_inputs.py build/cpu/nibble [--case NAME] [--list]`

Every case creates its files, runs one command, and defines the expected result: the exit status and words of the
output. The limits are 10 s of processor time (RLIMIT_CPU, so a busy machine changes nothing) and 2 GiB of resident
memory (measured by the system at the end). A signal, "terminate called", an exceeded limit or a sanitizer's finding is
a failure, which names its cause. `make hostile` runs this with AddressSanitizer and UndefinedBehaviorSanitizer.
"""
import argparse
import gzip
import json
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
CHAT = os.path.join(HERE, "..", "data", "chat")
CPU_SECONDS, MEMORY = 10, 2 << 30
WALL_SECONDS = 600  # only ends a command that waits forever

CASES = []


class Case:
    """A case; `make` writes files to the current folder and returns the arguments."""

    def __init__(self, name, status, words, make, **process):
        self.name, self.status, self.words, self.make, self.process = name, status, words, make, process


def case(name, status, words="", **process):
    def add(make):
        CASES.append(Case(name, status, words, make, **process))
        return make
    return add


def write(path, text):
    data = text.encode() if isinstance(text, str) else text
    with open(path, "wb") as f:
        f.write(data)
    return path


# ---- Templates -----------------------------------------------------------------------------------------------------

STEPS, BYTES = "limit of [0-9]+ steps is reached", "limit of [0-9]+ bytes of texts and lists made on the way is reached"
DOUBLED = "{% set ns=namespace(t=(1,)) %}{% for i in range(60) %}{% set ns.t=(ns.t,ns.t) %}{% endfor %}"
BIG = "{% set a='a'*4000000 %}{% set n='a'*2000000 ~ 'b' ~ 'a'*1000000 %}"
TEMPLATES = {
    "a chain of loops": ("{% set ns=namespace(l=0) %}{% for i in range(99999) %}{% for j in [1] %}{% if loop.changed(ns.l) %}{% endif %}"
                         "{% set ns.l=loop %}{% endfor %}{% endfor %}ok", 0, '"rendered":"ok"'),
    "a loop that holds itself": ("{% for i in [1] %}{% if loop.changed(loop) %}{% endif %}{% endfor %}ok", 0, '"rendered":"ok"'),
    "a chain of methods": ("{% set ns=namespace(f=1) %}{% for i in range(99999) %}{% set ns.f=[ns.f].copy %}{% endfor %}", 1, "nested too deeply"),
    "a chain of keywords": ("{% set ns=namespace(d=1) %}{% macro m() %}{% set ns.d = kwargs %}{% endmacro %}{% for i in range(99999) %}"
                            "{{ m(a=ns.d) }}{% endfor %}", 1, "nested too deeply"),
    "a tuple doubled sixty times, hashed": (DOUBLED + "{{ {}.get(ns.t) }}", 0, '"rendered":"None"'),
    "a tuple doubled sixty times, printed": (DOUBLED + "{{ ns.t }}", 1, f"{BYTES}|{STEPS}"),
    "a tuple doubled sixty times, as JSON": (DOUBLED + "{{ ns.t|tojson }}", 1, f"{BYTES}|{STEPS}"),
    "searches in megabytes": (BIG + "{% for i in range(99999) %}{% if n in a %}{% endif %}{% endfor %}", 1, STEPS),
    "splits of megabytes": (BIG + "{% for i in range(99999) %}{% if a.split(n) %}{% endif %}{% endfor %}", 1, f"{BYTES}|{STEPS}"),
    "splits of megabytes from the right": (BIG + "{% for i in range(99999) %}{% if a.rsplit(n) %}{% endif %}{% endfor %}", 1, f"{BYTES}|{STEPS}"),
    "comparisons of megabytes": (BIG + "{% set b='a'*3999999 ~ 'b' %}{% for i in range(99999) %}{% if a == b %}{% endif %}{% endfor %}", 1, STEPS),
    "keywords of megabytes": ("{% set a='a'*3000000 %}{% for i in range(99999) %}{% set z=namespace(**{a:1}) %}{% endfor %}", 1, BYTES),
    "numbers of megabytes": (BIG + "{% for i in range(99999) %}{% set z=a|int %}{% endfor %}", 1, STEPS),
    "reasons of megabytes": ("{% set l=(['x']*60000) %}{% set ns=namespace(l=1) %}{% for i in range(99999) %}{% set n=namespace(p=ns.l, v=l|map('attr', '" + "n" * 900 +
                             "')|list) %}{% set ns.l=n %}{% endfor %}", 1, f"{BYTES}|{STEPS}"),
    "a width of a million": ("{{ '%999999d' % 1 }}", 1, "width or precision"),
    "a precision of a million": ("{{ '%.999999f' % 1.5 }}", 1, "width or precision"),
    "separators of megabytes": ("{{ ([1]*90000)|tojson(separators=('x'*1000000, ':')) }}", 1, BYTES),
    "an indent of megabytes": ("{{ [[[[[[[[1]]]]]]]]|tojson(indent='x'*60000000) }}", 1, BYTES),
    "a join of megabytes": ("{{ (['a']*90000)|join('x'*1000000) }}", 1, BYTES),
    "a range at the edge": ("{{ range(-9223372036854775807-1, 9223372036854775807, 2**62)|list|length }}", 0, '"rendered":"4"'),
    "rounding at the edge": ("{{ 9223372036854775807|round(-1) }}", 1, "64 bits"),
    "a call with many names": ("{{ dict(" + ",".join(f"a{i}=1" for i in range(100000)) + ") }}", 1, "named arguments"),
    "a name of a megabyte": ("{% for i in range(99999) %}{{ " + "a" * 1000000 + " }}{% endfor %}", 1, "a name is longer"),
    "a thousand loops in one another": ("{% for i in range(99999) %}" * 90 + "{% endfor %}" * 90, 1, f"{BYTES}|{STEPS}"),
}


def template_case(name, source, status, words):
    @case("template: " + name, status, words)
    def _():
        write("chat.jinja", source)
        write("lines.jsonl", json.dumps({"messages": [{"role": "user", "content": "hello"}]}) + "\n")
        return ["template", "chat.jinja", "--jsonl", "lines.jsonl"]


for template_name, (template, wanted_status, wanted_words) in TEMPLATES.items():
    template_case(template_name, template, wanted_status, wanted_words)

# ---- Tokenizers ----------------------------------------------------------------------------------------------------


def tokenizer(model=None, **parts):
    document = {**parts, "model": model or {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}}
    return write("tokenizer.json", json.dumps(document))


def tokenizer_case(name, status, words, text, make, **more):
    @case("tokenizer: " + name, status, words)
    def _():
        make()
        write("lines.jsonl", json.dumps({"text": text}) + "\n")
        return ["tokenize", "tokenizer.json", "--jsonl", "lines.jsonl", *more.get("flags", [])]


def replace(text="a", by="a" * 1000):
    return {"type": "Replace", "pattern": {"String": text}, "content": by}


def metaspace(mark):
    return {"type": "Metaspace", "replacement": mark, "prepend_scheme": "always", "split": False}


def split(regex):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated"}


LONG = "a" * 100000 + "b"
tokenizer_case("four replacements in a row", 1, BYTES, "a", lambda: tokenizer(normalizer={"type": "Sequence", "normalizers": [replace()] * 4}))
tokenizer_case("four replacements of an added token", 1, "added_tokens.*" + BYTES, "b", lambda: tokenizer(
    normalizer={"type": "Sequence", "normalizers": [replace()] * 4}, added_tokens=[{"id": 0, "content": "a", "normalized": True}]))
tokenizer_case("four replacements in the decoder", 1, "decoder", "a", lambda: tokenizer(decoder={"type": "Sequence", "decoders": [replace()] * 4}))
tokenizer_case("marks of blanks", 1, BYTES, "a b c", lambda: tokenizer(pre_tokenizer={"type": "Sequence", "pretokenizers": [metaspace(" " * 1000)] * 4}))
tokenizer_case("thousands of prefixes", 1, BYTES, "a", lambda: tokenizer(
    normalizer={"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "b" * 1000}] * 3000}))
tokenizer_case("post-processors that multiply", 1, "over 4096 special tokens", "a", lambda: tokenizer(post_processor={
    "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x", "type_id": 0}}] * 4000 + [{"Sequence": {"id": "A", "type_id": 0}}],
    "special_tokens": {"x": {"id": "x", "ids": [0] * 100000, "tokens": []}}}))
tokenizer_case("an added token of 100 kB", 1, STEPS, "a" * 200000, lambda: tokenizer(added_tokens=[{"id": 2, "content": LONG, "normalized": False}]))
tokenizer_case("a piece of 100 kB", 1, STEPS, "a" * 200000, lambda: tokenizer(
    {"type": "Unigram", "unk_id": 0, "vocab": [["a", -1.0], [LONG, -2.0]]}))
NEARLY = "a" * 200000 + "cb" + "a" * 300000
for regex in (r"(?:a|a){1,17}b|a", r"a.*b|a", r"(a*)*b", r"(?=(a+))\1b|a", r"(?:a?){30}a{30}b", "(a|a)" * 20 + "b|a", "a" * 30000 + "b|a"):
    tokenizer_case(f"the expression {regex[:24]}", 1, STEPS, NEARLY, lambda regex=regex: tokenizer(pre_tokenizer=split(regex)))
tokenizer_case(r"the expression (?:.|\n)*z", 1, "needs more than 64 MiB|" + STEPS, "a" * 2000000 + "z", lambda: tokenizer(pre_tokenizer=split(r"(?:.|\n)*z")))
tokenizer_case("a recursive expression", 1, "is not supported", "a", lambda: tokenizer(pre_tokenizer=split(r"(?R)?a")))

# ---- JSON ----------------------------------------------------------------------------------------------------------

MANY = 300000  # number of keys; quadratic work on them takes minutes


def many_keys():
    return {f"key {i}": i for i in range(MANY)}


@case("JSON: a config with 300,000 keys", 0)
def _():
    shutil.copytree(CHAT, "model")
    with open("model/config.json") as f:
        config = json.load(f)
    config.update(many_keys())
    write("model/config.json", json.dumps(config))
    return ["inspect", "model", "--summary"]


@case("JSON: scales with 300,000 names", 1, "nibble: ")
def _():
    write("scales.json", json.dumps({f"model.layers.{i}.x.input_scale": 1.0 for i in range(MANY)}))
    return ["quantize", CHAT, "-o", "out", "--recipe", "nvfp4", "--input-scales", "scales.json", "--quiet"]


@case("JSON: a line with 300,000 keys", 0, '"rendered":"hello"')
def _():
    write("chat.jinja", "{{ messages[0].content }}")
    write("lines.jsonl", json.dumps({"messages": [{"role": "user", "content": "hello"}], **many_keys()}) + "\n")
    return ["template", "chat.jinja", "--jsonl", "lines.jsonl"]


@case("JSON: twenty million values", 1, "values")
def _():
    write("lines.jsonl", '{"text": [' + "1," * 20000000 + "1]}\n")
    return ["tokenize", CHAT, "--jsonl", "lines.jsonl"]


# ---- Data files ----------------------------------------------------------------------------------------------------


def packed(text, times):
    """Returns gzip data that decompresses to `text` repeated `times` times, as consecutive members."""
    return gzip.compress(text, 9) * times


LETTERS = b"a" * (16 << 20)
BUILD = ["data", "build", "-o", "out", "--tokenizer", CHAT]
CALIBRATE = ["quantize", CHAT, "-o", "out", "--recipe", "nvfp4", "--quiet", "--calib"]
DATA = {  # file, its bytes, words of the error
    "a text of 4 GB in 4 MB": ("bomb.txt.gz", lambda: packed(LETTERS, 256), "bomb.txt.gz.*512 MiB"),
    "a line of 4 GB in 4 MB": ("bomb.jsonl.gz", lambda: packed(LETTERS, 256), "bomb.jsonl.gz.*(MiB|bytes)"),
    "a line that is no JSON": ("lines.jsonl", lambda: b'{"text": "' + LETTERS, "lines.jsonl"),
    "gzip that is cut": ("cut.txt.gz", lambda: packed(os.urandom(5000), 1)[:3000], "cut.txt.gz"),
    "gzip that is none": ("none.jsonl.gz", lambda: b"hello", "none.jsonl.gz"),
    "parquet of somebody": ("rows.parquet", lambda: b"PAR1" + bytes(1000) + b"PAR1", "rows.parquet"),
}
for name, (file, content, words) in DATA.items():
    @case("data build: " + name, 1, words)
    def _(file=file, content=content):
        return [*BUILD, write(file, content())]
    if not file.startswith("bomb.txt"):  # calibration reads only the beginning of a text
        @case("calibration: " + name, 1, words.split(".*")[0])
        def _(file=file, content=content):
            return [*CALIBRATE, write(file, content())]


# ---- GGUF ----------------------------------------------------------------------------------------------------------


def gguf_string(text):
    return struct.pack("<Q", len(text)) + text.encode()


def gguf_key(name, kind, value):
    return gguf_string(name) + struct.pack("<I", kind) + value


def gguf_array(kind, items):
    return struct.pack("<IQ", kind, len(items)) + b"".join(items)


@case("GGUF: a token of 400 kB", 1, "nibble: ")
def _():
    tokens = ["<unk>", "a", "a" * 400000] + ["a" * n for n in range(2, 600)]
    keys = [gguf_key("general.architecture", 8, gguf_string("llama")),
            gguf_key("tokenizer.ggml.model", 8, gguf_string("llama")),
            gguf_key("tokenizer.ggml.tokens", 9, gguf_array(8, [gguf_string(t) for t in tokens])),
            gguf_key("tokenizer.ggml.scores", 9, gguf_array(6, [struct.pack("<f", -i) for i in range(len(tokens))])),
            gguf_key("tokenizer.ggml.token_type", 9, gguf_array(5, [struct.pack("<i", 2 if i == 0 else 1) for i in range(len(tokens))]))]
    write("model.gguf", b"GGUF" + struct.pack("<IQQ", 3, 0, len(keys)) + b"".join(keys))
    return ["tokenize", "model.gguf", "hello"]


# ---- Exceptions, descriptors and paths -----------------------------------------------------------------------------

QUANTIZE = ["quantize", CHAT, "-o", "out", "--recipe", "w4a16_nvfp4", "--quiet"]


@case("process: a million threads", 0)
def _():
    return [*QUANTIZE, "--threads", "1000000"]


@case("process: a recipe that is memory", 1, "nibble: /proc/self/mem: |cannot (read|open)")
def _():
    return ["quantize", CHAT, "-o", "out", "--recipe", "/proc/self/mem"]


@case("process: an output whose name is not UTF-8", 0)
def _():
    return ["quantize", CHAT, "-o", b"out\xff", "--recipe", "w4a16_nvfp4", "--quiet"]


@case("process: a path that loops", 1, "nibble: ")
def _():
    os.symlink("loop", "loop")
    return ["quantize", "loop/model", "-o", "out", "--recipe", "w4a16_nvfp4"]


@case("process: an output in a path that loops", 1, "nibble: ")
def _():
    os.symlink("loop", "loop")
    return ["quantize", CHAT, "-o", "loop/out", "--recipe", "w4a16_nvfp4"]


@case("process: a full device as standard output", 1, "standard output cannot be written", stdout="/dev/full")
def _():
    return ["tokenize", CHAT, "hello"]


@case("process: nobody reads standard output", 1, stdout="closed pipe")
def _():
    return ["tokenize", CHAT, "hello"]


@case("process: nobody reads a long output", 1, r"\A\Z", stdout="closed pipe")
def _():
    return ["inspect", CHAT, "--json"]


@case("process: no descriptors 0, 1 and 2", 0, check=lambda: os.path.exists("out/model.safetensors"), closed=True)
def _():
    return ["quantize", CHAT, "-o", "out", "--recipe", "w4a16_nvfp4"]


@case("process: files of 8 kB at most", 1, "File too large|cannot", limit=(resource.RLIMIT_FSIZE, 8192), check=lambda: os.listdir(".") == [])
def _():
    return QUANTIZE


@case("process: 24 descriptors at most", {0, 1}, limit=(resource.RLIMIT_NOFILE, 24))
def _():
    return [*QUANTIZE, "--max-shard-size", "1kB", "--threads", "2"]


# ---- Running the cases ---------------------------------------------------------------------------------------------


def prepare(process):
    def inner():
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if "limit" in process:
            kind, value = process["limit"]
            resource.setrlimit(kind, (value, value))
        if process.get("closed"):
            for fd in range(3):
                os.close(fd)
    return inner


def watch(child, done, seen):
    """Kills a command that uses twice the allowed memory. The verdict uses the system's measurement."""
    while not done.wait(0.05):
        try:
            with open(f"/proc/{child.pid}/statm") as f:
                seen["peak"] = max(seen["peak"], int(f.read().split()[1]) * resource.getpagesize())
        except (OSError, IndexError, ValueError):
            return
        if seen["peak"] > 2 * MEMORY or time.monotonic() > seen["until"]:
            seen["ended"] = "memory" if seen["peak"] > 2 * MEMORY else "time"
            child.send_signal(signal.SIGKILL)
            return


def run(nibble, one):
    """Returns (None or the problem, a line of measurements)."""
    arguments = one.make()
    stdout = subprocess.PIPE
    if one.process.get("stdout") == "/dev/full":
        stdout = open("/dev/full", "wb")
    elif one.process.get("stdout") == "closed pipe":
        reader, stdout = os.pipe()
        os.close(reader)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen([nibble, *arguments], stdin=subprocess.DEVNULL, stdout=out if stdout == subprocess.PIPE else stdout, stderr=err,
                                 env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"}, preexec_fn=prepare(one.process))
        done, seen = threading.Event(), {"peak": 0, "until": time.monotonic() + WALL_SECONDS, "ended": ""}
        watcher = threading.Thread(target=watch, args=(child, done, seen))
        watcher.start()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        done.set()
        watcher.join()
        for file in (out, err):
            file.seek(0)
        said = out.read(1 << 20).decode(errors="replace") + err.read(1 << 20).decode(errors="replace")
    if isinstance(stdout, int) and stdout >= 0:
        os.close(stdout)
    seconds, memory = usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10
    figures = f"status {child.returncode}, {seconds:.2f} s, {memory >> 20} MiB: {said.strip()[:160]!r}"
    wanted = one.status if isinstance(one.status, set) else {one.status}
    if seen["ended"]:
        return f"ended by this script, for its {seen['ended']}", figures
    if child.returncode == -signal.SIGXCPU or (child.returncode == -signal.SIGKILL and seconds >= CPU_SECONDS):
        return f"took over {CPU_SECONDS} s of processor time", figures
    if child.returncode < 0:
        return f"ended with {signal.Signals(-child.returncode).name}", figures
    if memory > MEMORY:
        return f"took {memory >> 20} MiB", figures
    if "terminate called" in said:
        return "an exception left the program", figures
    found = re.search("(ERROR: (Address|Leak)Sanitizer.*)|(runtime error: .*)", said)
    if found:
        return found.group(0), figures
    if child.returncode not in wanted:
        return f"the exit status is not {one.status}", figures
    if one.words and not re.search(one.words, said):
        return f"does not say {one.words!r}", figures
    if "check" in one.process and not one.process["check"]():
        return "what it left is wrong", figures
    return None, figures


def main():
    p = argparse.ArgumentParser()
    p.add_argument("nibble", nargs="?")
    p.add_argument("--case", help="only cases whose name holds this")
    p.add_argument("--list", action="store_true")
    a = p.parse_args()
    if a.list:
        print("\n".join(c.name for c in CASES))
        return
    nibble, bad, ran = os.path.abspath(a.nibble), [], 0
    start = os.getcwd()
    for one in CASES:
        if a.case and a.case not in one.name:
            continue
        ran += 1
        folder = tempfile.mkdtemp(prefix="nibble-hostile-")
        os.chdir(folder)
        try:
            wrong, figures = run(nibble, one)
        finally:
            os.chdir(start)
            shutil.rmtree(folder)
        print(f"{'FAILED' if wrong else 'ok'}: {one.name}: {figures}" + (f": {wrong}" if wrong else ""), flush=True)
        if wrong:
            bad.append(one.name)
    if bad:
        sys.exit(f"{len(bad)} of {ran} cases failed: {'; '.join(bad)}")
    print(f"{ran} hostile inputs: all ended as expected, within {CPU_SECONDS} s of processor time and {MEMORY >> 30} GiB")


if __name__ == "__main__":
    main()
