"""Checks fields of answers that other programs read: `api_fields.py build/cpu/nibble`

Compares token offsets with Python's count of characters, checks constrained answers with jsonschema's validator, and
compares a model folder of links with the folder itself for every command that opens one. Exit status 77: the packages
are not installed (tools/setup --test installs them into .venv).
"""
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
VENV = os.path.join(HERE, "..", "..", ".venv", "bin", "python")
MODEL = pathlib.Path(HERE, "..", "data", "chat").resolve()
try:
    import jsonschema
    import tokenizers
except ImportError:
    if os.path.exists(VENV) and not os.environ.get("NIBBLE_IN_VENV"):
        os.execve(VENV, [VENV, *sys.argv], {**os.environ, "NIBBLE_IN_VENV": "1"})
    print("the packages jsonschema and tokenizers are not installed")
    sys.exit(77)


class Server:
    def __init__(self, program, model):
        self.process = subprocess.Popen([program, "serve", model, "--port", "0", "--kv-memory", "64MB"], stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if "is served at http" in line:
                self.url = line.split("is served at ")[1].split()[0].rstrip("/.,")
                break
        else:
            raise SystemExit("the server did not start")
        threading.Thread(target=self.process.stderr.read, daemon=True).start()  # a full pipe would stop the server

    def ask(self, path, body=None):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode() if body is not None else None)
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.loads(answer.read())

    def stop(self):
        self.process.terminate()
        self.process.wait(60)


def test_offsets(server):
    vocabulary = tokenizers.Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    dice = random.Random(7)
    alphabet = "az ß äöü éñ 日本語 한국어 мир 😀👍🏽🇩🇪 \n\t\"<>"
    for _ in range(40):
        text = "".join(dice.choice(alphabet) for _ in range(dice.randint(1, 30)))
        choice = server.ask("/v1/completions", {"prompt": text, "max_tokens": 0, "echo": True, "logprobs": 1})["choices"][0]
        ids = server.ask("/tokenize", {"prompt": text})["tokens"]
        want = []
        for i in range(len(ids)):
            begun = vocabulary.decode(ids[:i], skip_special_tokens=True)
            want.append(len(begun.rstrip("\ufffd")))  # U+FFFD stands for an incomplete character; the text has none
        got = choice["logprobs"]["text_offset"]
        assert choice["text"] == text and got == want, (text, got, want)


def test_schemas(server):
    """Answers validate against schemas with annotations; objects have only the members of their schema."""
    noise = {"nullable": False, "propertyOrdering": ["b"], "errorMessage": {"type": "no"}, "id": "urn:x", "markdownDescription": "m", "x-nullable": True, "enumNames": ["q"], "format": "color"}
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 4, **noise}, "age": {"type": "integer", "minimum": 0, "maximum": 99, **{**noise, "format": "int32"}},
                                               "kind": {"enum": ["a", "b"], **noise}}, "required": ["name", "age"], **{**noise, "format": "row"}}
    for seed in range(8):
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 300, "seed": seed, "temperature": 1.2}
        for strict in ({}, {"strict": True}, {"strict": False}):
            answer = server.ask("/v1/chat/completions", body | {"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": schema, **strict}}})["choices"][0]
            assert answer["finish_reason"] == "stop", answer
            document = json.loads(answer["message"]["content"])
            jsonschema.validate(document, {k: v for k, v in schema.items() if k != "format"})
            assert set(document) <= {"name", "age", "kind"}, document


def test_links(program):
    """Every command reads a folder of links to files like the files themselves."""
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        (work / "elsewhere").mkdir()
        (work / "links").mkdir()
        for path in MODEL.iterdir():
            target = work / "elsewhere" / ("blob-" + path.name)
            target.write_bytes(path.read_bytes())
            (work / "links" / path.name).symlink_to(target)
        for name, text in (("generation_config.json", '{"temperature": 0.5}'), ("chat_template.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}"), ("LICENSE", "free")):
            (work / "elsewhere" / name).write_text(text)
            (work / "links" / name).symlink_to(work / "elsewhere" / name)
        plain = work / "plain"
        subprocess.run(["cp", "-rL", work / "links", plain], check=True)
        (work / "t.txt").write_text("the quick brown fox " * 40)
        commands = [["inspect", "MODEL"], ["verify", "MODEL"], ["tokenize", "MODEL", "some text"], ["template", "MODEL", "--jsonl", work / "chat.jsonl"],
                    ["generate", "MODEL", "abc", "--max-tokens", "4", "--temperature", "0"], ["eval", "MODEL", "--text", work / "t.txt", "--context", "64"],
                    ["convert", "MODEL", "-o", "OUT", "--format", "bf16"], ["quantize", "MODEL", "-o", "OUT", "-r", "w4a16_nvfp4"]]
        (work / "chat.jsonl").write_text('{"messages": [{"role": "user", "content": "hello"}]}\n')
        for n, command in enumerate(commands):
            said = []
            for kind in ("plain", "links"):
                out = work / f"out-{n}-{kind}"
                words = [str({"MODEL": work / kind, "OUT": out}.get(w, w)) for w in command]
                done = subprocess.run([program, *words], capture_output=True, text=True, timeout=300)
                said.append(sorted((p.name, not p.is_symlink()) for p in out.iterdir()) if out.exists() else done.stdout.replace(str(work / kind), "MODEL"))
                assert done.returncode == 0, (words, done.stderr)
            assert command[0] == "eval" or said[0] == said[1], (command, said)  # eval prints times
        server = Server(program, work / "links")
        try:
            model = server.ask("/v1/models")["data"][0]["default_sampling_params"]
            assert model["temperature"] == 0.5 and model["from_generation_config"] == ["temperature"], model
            info = server.ask("/tokenizer_info")
            assert info["eos_token"] == "<mask>" and info["chat_template"].startswith("{% for m"), info
        finally:
            server.stop()


def main(program):
    server = Server(program, MODEL)
    try:
        for test in (test_offsets, test_schemas):
            test(server)
            print("ok", test.__name__, flush=True)
    finally:
        server.stop()
    test_links(program)
    print("ok test_links")


if __name__ == "__main__":
    main(sys.argv[1])
