"""Puts mixed load on a nibble server over HTTP: `http_soak.py build/cpu/nibble [--seconds 30]`

Starts `nibble serve` with tests/data/chat. Clients request all kinds of answers, with and without streaming, disconnect
early, truncate bodies and send invalid ones. At the end resident memory must be within GROWTH of its value after a
third of the time, the number of descriptors must be the initial one, nothing may run or wait, and the counters must
equal those of the clients. Needs only Python's standard library.
"""
import argparse
import collections
import http.client
import json
import os
import random
import re
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from hostile_connections import SECONDS, Server  # noqa: E402

GROWTH = 48 << 20
CLIENTS = 8


def resident(server):
    with open(f"/proc/{server.process.pid}/status") as f:
        return int(re.search(r"VmRSS:\s+(\d+) kB", f.read()).group(1)) << 10


def metric(server, name):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=SECONDS)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    found = re.findall(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", text, re.M)
    assert found, name
    return sum(map(float, found))


def body_of(r):
    """Returns a path, a body, and the number of choices (0: the body is invalid)."""
    if r.random() < 0.1:
        return "/v1/completions", {"prompt": "x", "max_tokens": r.choice([0, -1, "many"])}, 0
    if r.random() < 0.3:
        body = {"messages": [{"role": "user", "content": "x" * r.randrange(1, 100)}], "max_tokens": r.randrange(1, 40)}
        if r.random() < 0.2:
            body["chat_template"] = "{% for m in messages %}{{ m.content }}{% endfor %}" + str(r.randrange(1000))
        path = "/v1/messages" if r.random() < 0.3 and "chat_template" not in body else "/v1/chat/completions"
    else:
        path, body = "/v1/completions", {"prompt": "x" * r.randrange(1, 300), "max_tokens": r.randrange(1, 60)}
        body["n"] = r.choice([1, 1, 2])
        if r.random() < 0.2:
            body["guided_regex"] = "[a-f]{3,%d}x" % r.randrange(4, 40)
        elif r.random() < 0.1:
            body["guided_json"] = {"type": "object", "properties": {"a%d" % r.randrange(1000): {"type": "integer"}}}
    body.update(seed=r.randrange(99), stream=r.random() < 0.5)
    return path, body, body.get("n", 1)


class Load:
    def __init__(self, server, end):
        self.server, self.end = server, end
        self.lock, self.counts = threading.Lock(), collections.Counter()
        self.failures = []

    def count(self, what, n=1):
        with self.lock:
            self.counts[what] += n

    def client(self, seed):
        r = random.Random(seed)
        try:
            while time.time() < self.end:
                self.ask(r)
        except Exception as error:  # a failure of a thread fails the run
            self.failures.append(f"client {seed}: {error!r}")

    def ask(self, r):
        path, body, choices = body_of(r)
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        connection = self.server.connect()
        try:
            kind = r.random()
            if kind < 0.05:  # a truncated body is not a request
                connection.sendall(head + data[:r.randrange(len(data))])
                self.count("cut")
                return
            connection.sendall(head + data)
            if kind < 0.25:
                time.sleep(r.random() * 0.02)
                self.count("left")
                self.count("choices of who left", choices)
                return
            answer = b""
            while piece := connection.recv(65536):
                answer += piece
        finally:
            connection.close()
        status = int(answer[9:12])
        assert status == (200 if choices else 400), (body, answer[:300])
        self.count("answered")
        self.count("choices", choices)
        if body.get("stream") and choices:
            end = b"message_stop" if path == "/v1/messages" else b"[DONE]"
            assert end in answer[-600:], (body, answer[-600:])


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("program")
    arguments.add_argument("--seconds", type=float, default=30)
    options = arguments.parse_args()
    server = Server(options.program)
    server.post("/v1/completions", {"prompt": "x", "max_tokens": 2})
    time.sleep(0.2)
    descriptors, before = server.descriptors(), metric(server, "vllm:request_success_total")
    begin = time.time()
    load = Load(server, begin + options.seconds)
    threads = [threading.Thread(target=load.client, args=(seed,)) for seed in range(CLIENTS)]
    for thread in threads:
        thread.start()
    time.sleep(options.seconds / 3)
    early = resident(server)
    most = early
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.2)
        most = max(most, resident(server))
    assert not load.failures, load.failures
    deadline = time.time() + SECONDS
    while server.descriptors() > descriptors or metric(server, "vllm:num_requests_running") + metric(server, "vllm:num_requests_waiting"):
        assert time.time() < deadline, (server.descriptors(), descriptors)
        time.sleep(0.05)
    counts = load.counts
    ended = metric(server, "vllm:request_success_total") - before
    assert counts["choices"] <= ended <= counts["choices"] + counts["choices of who left"], (ended, counts)
    assert metric(server, "vllm:e2e_request_latency_seconds_count") - 1 <= ended, ended
    for what in ("answered", "cut", "left"):
        assert counts[what] > 0, (what, counts)
    assert most - early <= GROWTH, (early, most)
    server.stop()
    print(f"{counts['answered']} answered, {counts['left']} left, {counts['cut']} cut short; resident {early >> 20} MiB early, "
          f"{most >> 20} MiB at most; {descriptors} descriptors as at the start")


if __name__ == "__main__":
    main()
