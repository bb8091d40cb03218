"""Tests a server that is killed, loses files, or is under load: `server_faults.py build/cpu/nibble`

Runs every function whose name begins with test_ with tests/data/chat. After kill -9 under load clients see complete and
correct answers or broken connections (or, for a moment, that the model is being loaded), and the same command serves
again, at a port and at a Unix socket. Replacing, overwriting or truncating a checkpoint's files under the server
changes no answer. 500 random requests at once (prefix hits, preemptions, drafts, constraints, priorities,
cancellations) give the bits of each request alone. A log that cannot be written does not end the server. A model
without a chat template uses that of a request. Needs only Python's standard library.
"""
import atexit
import concurrent.futures
import http.client
import json
import os
import pathlib
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "..", "data", "chat")
SECONDS = 300.0  # timeout; results do not depend on it
BROKEN = (OSError, http.client.HTTPException)


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=SECONDS)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(SECONDS)
        self.sock.connect(self.path)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """A server at a port or, with `unix`, at a socket. start() after kill() runs the same command again."""

    def __init__(self, program, *flags, model=MODEL, unix=None, log=None):
        self.port, self.unix, self.log = free_port(), unix, log
        self.command = [program, "serve", model, *(["--unix", unix] if unix else ["--port", str(self.port)]), *([] if log else ["--quiet"]),
                        "--served-model-name", "tiny", *flags]
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stderr=self.log)
        atexit.register(self.process.kill)  # no server stays, whatever fails
        end = time.monotonic() + SECONDS
        while True:
            try:
                if self.post("/health", None)[0] == 200:
                    return
            except BROKEN:
                pass
            assert self.process.poll() is None, "the server ended"
            assert time.monotonic() < end, "the server is not ready"
            time.sleep(0.01)

    def kill(self):
        self.process.kill()
        self.process.wait(SECONDS)

    def stop(self):
        self.process.terminate()
        assert self.process.wait(SECONDS) == 0, self.process.returncode

    def connect(self):
        return UnixConnection(self.unix) if self.unix else http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)

    def post(self, path, body):
        connection = self.connect()
        try:
            connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def metrics(self):
        sums = {}
        for line in self.post("/metrics", None)[1].decode().splitlines():
            if line[0] != "#":
                name = line.split("{")[0]
                sums[name] = sums.get(name, 0) + float(line.split()[-1])
        return sums


def said(server, body):
    """Returns the content of an answer, complete or joined from its stream. A stream must end with [DONE]."""
    status, text = server.post("/v1/completions", body)
    if status == 503 and b"is being loaded" in text:  # the port is open, and /health gives the same status
        raise http.client.HTTPException(text)
    assert status == 200, (status, text[:300])
    if not body.get("stream"):
        return [(c["text"], c["finish_reason"], c["logprobs"]["token_logprobs"]) for c in sorted(json.loads(text)["choices"],
                                                                                                 key=lambda c: c["index"])]
    events = [e[6:] for e in text.decode().split("\n\n") if e.startswith("data: ")]
    if not events or events[-1] != "[DONE]":
        raise http.client.IncompleteRead(text)
    out = [["", None, []] for _ in range(body.get("n", 1))]
    for event in map(json.loads, events[:-1]):
        assert "error" not in event, event
        for choice in event["choices"]:
            one = out[choice["index"]]
            one[0] += choice["text"]
            one[1] = choice["finish_reason"] or one[1]
            one[2] += choice["logprobs"]["token_logprobs"] if choice["logprobs"] else []
    return [tuple(one) for one in out]


def kill_under_load(server):
    asks = [{"prompt": f"number {i}", "max_tokens": 60 + 10 * i, "seed": i, "temperature": 1, "logprobs": 1, "ignore_eos": True,
             "stream": i % 2 == 0} for i in range(8)]
    alone = [said(server, ask) for ask in asks]
    for round_number in range(3):
        whole, broken, wrong, quit_now = [0], [0], [], threading.Event()

        def client(i):
            while not quit_now.is_set():
                try:
                    if said(server, asks[i]) != alone[i]:
                        wrong.append(i)
                    whole[0] += 1
                except BROKEN:
                    broken[0] += 1
                    time.sleep(0.01)
                except Exception as error:  # a body that is neither an answer nor truncated
                    wrong.append(repr(error))

        threads = [threading.Thread(target=client, args=(i % 8,)) for i in range(24)]
        for thread in threads:
            thread.start()
        time.sleep(0.6 + 0.17 * round_number)
        server.kill()
        seen = broken[0]
        server.start()
        assert [said(server, ask) for ask in asks] == alone
        quit_now.set()
        for thread in threads:
            thread.join(SECONDS)
        assert not wrong, wrong[:3]
        assert whole[0] > 8 and broken[0] > 0 and broken[0] >= seen, (whole, broken)
    server.stop()


def test_kill_under_load_and_restart(program):
    kill_under_load(Server(program, "--kv-memory", "16M"))


def test_kill_at_a_unix_socket(program):
    with tempfile.TemporaryDirectory() as work:
        path = os.path.join(work, "s")
        kill_under_load(Server(program, "--kv-memory", "16M", unix=path))
        assert not os.path.exists(path)


def test_files_replaced_under_the_server(program):
    for changes in (("rename", "overwrite", "cut", "remove"), ("overwrite", "cut", "rename"), ("cut", "overwrite", "remove"), ("remove",)):
        files_changed(program, changes)


def files_changed(program, changes):
    asks = [{"prompt": f"{'word ' * i} {i}", "max_tokens": 50, "seed": i, "temperature": 1, "logprobs": 1} for i in range(24)]
    with tempfile.TemporaryDirectory() as work:
        folder = shutil.copytree(MODEL, os.path.join(work, "model"))
        server = Server(program, "--kv-memory", "16M", "--no-prefix-cache", model=folder)
        right = [said(server, ask) for ask in asks]
        for change in changes:
            for path in sorted(pathlib.Path(folder).glob("*")):
                if change == "rename":
                    other = path.with_suffix(".new")
                    other.write_bytes(bytes(path.stat().st_size))
                    other.rename(path)
                elif change == "overwrite":
                    with open(path, "r+b") as file:
                        file.write(b"\xff" * path.stat().st_size)
                elif change == "cut":
                    os.truncate(path, 0)
                else:
                    path.unlink()
            assert [said(server, ask) for ask in asks] == right, change
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                assert list(pool.map(lambda ask: said(server, ask), asks)) == right, change
            assert server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2})[0] == 200
        server.stop()


def random_ask(rng):
    ask = {"prompt": rng.choice(["", "once upon a time there was a house by the sea, and in it " * 3, "abcabcabc" * 9]) +
           "".join(rng.choice("abc xyz ") for _ in range(1 + rng.randrange(60))),
           "max_tokens": 1 + rng.randrange(120), "seed": rng.randrange(1000), "temperature": rng.choice([0, 0.5, 1, 1.4]),
           "logprobs": rng.randrange(3), "stream": rng.random() < 0.5, "priority": rng.randrange(3)}
    for name, value in (("top_k", 5), ("top_p", 0.8), ("min_p", 0.05), ("repetition_penalty", 1.2), ("presence_penalty", 0.5),
                        ("frequency_penalty", 0.4), ("n", 3), ("stop", ["e", "zz"]), ("ignore_eos", True), ("min_tokens", 1),
                        ("logit_bias", {"40": 3, "50": -3}), ("cache_salt", "s"), ("guided_regex", "[a-f]{3,40}x"),
                        ("guided_choice", ["yes", "no", "perhaps"]), ("response_format", {"type": "json_object"})):
        if rng.random() < 0.15 and not (name.startswith(("guided", "resp")) and {"guided_regex", "guided_choice"} & set(ask)):
            ask[name] = value
    return ask


def test_500_random_requests_equal_each_alone(program):
    rng = random.Random(5)
    asks = [random_ask(rng) for _ in range(500)]
    quiet = Server(program, "--kv-memory", "64M", "--max-num-seqs", "1", "--no-prefix-cache")
    alone = [said(quiet, ask) for ask in asks]
    quiet.stop()
    loaded = Server(program, "--kv-memory", "96K", "--max-num-seqs", "48", "--speculate", "lookup:4")

    def leave(ask):
        connection = loaded.connect()
        connection.request("POST", "/v1/completions", json.dumps({**ask, "stream": True, "ignore_eos": True, "max_tokens": 200}))
        connection.getresponse().read(100)
        connection.close()

    with concurrent.futures.ThreadPoolExecutor(80) as pool:
        jobs = []
        for i, ask in enumerate(asks):
            jobs.append(pool.submit(said, loaded, ask))
            if i % 10 == 0:
                pool.submit(leave, ask)
        different = [i for i, job in enumerate(jobs) if job.result(SECONDS) != alone[i]]
    assert not different, (len(different), asks[different[0]], jobs[different[0]].result(), alone[different[0]])
    end = time.monotonic() + SECONDS
    while loaded.metrics()["vllm:num_requests_running"] and time.monotonic() < end:
        time.sleep(0.05)
    counts = loaded.metrics()
    for name in ("vllm:num_preemptions_total", "vllm:prefix_cache_hits_total", "vllm:spec_decode_num_accepted_tokens_total"):
        assert counts[name] > 0, name
    assert counts["vllm:kv_cache_usage_perc"] == 0, counts["vllm:kv_cache_usage_perc"]
    loaded.stop()


def test_a_log_that_cannot_be_written_ends_no_server(program):
    with open("/dev/full", "w") as full:  # a full disk, from the first line on
        server = Server(program, log=full)
    for i in range(3):
        assert said(server, {"prompt": "a", "max_tokens": 2, "seed": i, "logprobs": 1})[0][1], i
    server.stop()
    server = Server(program, log=subprocess.PIPE)  # a reader that closes its end
    server.process.stderr.close()
    for i in range(3):
        assert said(server, {"prompt": "a", "max_tokens": 2, "seed": i, "logprobs": 1})[0][1], i
    server.stop()


def test_without_a_chat_template_a_conversation_brings_its_own(program):
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.join(folder, "model")
        shutil.copytree(MODEL, model)
        path = pathlib.Path(model, "tokenizer_config.json")
        words = json.loads(path.read_text())
        template = words.pop("chat_template")
        path.write_text(json.dumps(words))
        server, whole = Server(program, model=model), Server(program)
        body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4, "seed": 1}
        status, text = server.post("/v1/chat/completions", body)
        assert status == 400 and b"no chat template" in text, (status, text)
        answers = [json.loads(s.post("/v1/chat/completions", b)[1])["choices"][0]["message"]
                   for s, b in ((server, {**body, "chat_template": template}), (whole, body))]
        assert answers[0] == answers[1], answers
        assert said(server, {"prompt": "a", "max_tokens": 2, "seed": 1, "logprobs": 1})[0][1]
        server.stop()
        whole.stop()


def main():
    failed = 0
    for name, test in list(globals().items()):
        if not name.startswith("test_") or (len(sys.argv) > 2 and sys.argv[2] not in name):
            continue
        start = time.monotonic()
        try:
            test(sys.argv[1])
            print(f"{name}: ok, {time.monotonic() - start:.0f} s", flush=True)
        except Exception as error:  # continue with the next test
            failed += 1
            print(f"{name}: FAILED: {type(error).__name__}: {str(error)[:2000]}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
