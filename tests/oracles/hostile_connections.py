"""Opens hostile connections to a nibble server: `hostile_connections.py build/cpu/nibble [--connections 2000]`

Starts `nibble serve` with tests/data/chat and runs every function whose name begins with test_, while two clients
constantly request answers, which must equal those of an idle server. Every refusal must be JSON with a message. The
server's memory may grow by at most BOUND, and at the end it must have no more connections. Needs only Python's standard
library.
"""
import argparse
import atexit
import http.client
import json
import os
import random
import re
import resource
import selectors
import socket
import subprocess
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "..", "data", "chat")
SECONDS = 300.0  # timeout; results do not depend on it
# Allowed growth of the peak resident memory: one hostile body at a time may use 512 MiB (tests/fuzz/judge.h).
BOUND = 512 << 20
ASK = {"prompt": "once upon", "max_tokens": 40, "temperature": 1, "seed": 7, "logprobs": 2, "ignore_eos": True}


class Server:
    def __init__(self, program, *flags):
        self.process = subprocess.Popen(
            [program, "serve", MODEL, "--port", "0", "--kv-memory", "64M", "--served-model-name", "tiny", *flags],
            stderr=subprocess.PIPE, text=True)
        atexit.register(self.process.kill)  # no server stays, whatever fails
        self.port, lines = None, []
        for line in self.process.stderr:
            lines.append(line)
            if match := re.search(r"is served at http://127\.0\.0\.1:(\d+)", line):
                self.port = int(match.group(1))
                break
        assert self.port, "".join(lines)
        self.reader = threading.Thread(target=lambda: [None for _ in self.process.stderr], daemon=True)
        self.reader.start()

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), SECONDS)

    def peak(self):
        with open(f"/proc/{self.process.pid}/status") as f:
            return int(re.search(r"VmHWM:\s+(\d+) kB", f.read()).group(1)) << 10

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def post(self, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        try:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            connection.request("POST", path, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.headers, response.read()
        finally:
            connection.close()

    def refused(self, path, body, status):
        got, headers, text = self.post(path, body)
        assert got == status, (path, str(body)[:100], got, text[:300])
        check_error(headers.get("Content-Type"), text, status)
        return headers

    def stop(self):
        self.process.terminate()
        assert self.process.wait(SECONDS) == 0, self.process.returncode


def check_error(kind, body, status):
    assert kind == "application/json", (status, kind, body[:200])
    error = json.loads(body)["error"]
    assert error["message"] and "\n" not in error["message"], error


def wire(method, path, body=b"", headers=""):
    length = f"Content-Length: {len(body)}\r\n" if method == "POST" else ""
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{length}{headers}\r\n".encode() + body


def said(server):
    status, _, body = server.post("/v1/completions", ASK)
    assert status == 200, body
    choice = json.loads(body)["choices"][0]
    return choice["text"], choice["logprobs"]["token_logprobs"]


def answers_of(connection, count):
    """Returns status, type and body of answers that arrive in order on one connection."""
    file, out = connection.makefile("rb"), []
    for _ in range(count):
        status = int(file.readline().split()[1])
        headers = http.client.parse_headers(file)
        out.append((status, headers.get("Content-Type"), file.read(int(headers["Content-Length"]))))
    return out


class Slow:
    """Writes its request and reads the answer one byte at a time."""

    def __init__(self, server, request):
        self.socket, self.request, self.sent, self.got = server.connect(), request, 0, bytearray()
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)

    def step(self):  # returns true when the answer is complete
        if self.sent < len(self.request):
            self.sent += self.socket.send(self.request[self.sent:self.sent + 1])
            return False
        byte = self.socket.recv(1)
        self.got += byte
        return not byte


def test_half_of_the_connections_are_slow(server, count, _):
    body = json.dumps({"prompt": "a", "max_tokens": 2, "temperature": 0, "stream": True}).encode()
    idle = [server.connect() for _ in range(count // 2)]
    requests = [wire("GET", "/v1/models", headers="Connection: close\r\n"),
                wire("POST", "/v1/completions", body, "Connection: close\r\n")]
    slow, bodies = [Slow(server, requests[i % 8 == 0]) for i in range(count - count // 2)], set()
    waiting = selectors.DefaultSelector()
    for one in slow:
        waiting.register(one.socket, selectors.EVENT_WRITE, one)
    left, end = len(slow), time.monotonic() + SECONDS
    while left:
        assert time.monotonic() < end, f"{left} slow clients wait for their answers"
        for key, _ in waiting.select(1):
            one = key.data
            if one.step():
                waiting.unregister(one.socket)
                one.socket.close()
                left -= 1
                assert one.got.startswith(b"HTTP/1.1 200 "), one.got[:300]
                if b"event-stream" in one.got:
                    assert b"data: [DONE]" in one.got, one.got[-300:]
                    bodies.add(tuple(re.findall(rb'"text":"(.*?)"', one.got)))
            elif one.sent == len(one.request) and key.events == selectors.EVENT_WRITE:
                waiting.modify(one.socket, selectors.EVENT_READ, one)
    assert len(bodies) == 1, bodies
    for connection in idle:  # idle connections are served too
        connection.sendall(wire("GET", "/health"))
    for connection in idle:
        with connection:
            assert connection.recv(12) == b"HTTP/1.1 200"


def test_what_is_not_http(server, *_):
    post = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
    chunked = post + b"Transfer-Encoding: chunked\r\n\r\n"
    for request, status in (
            (b"hello\r\n\r\n", 400), (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400), (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400),
            (b"GET /%zz HTTP/1.1\r\nHost: localhost\r\n\r\n", 400), (b"GET / HTTP/1.1\r\nA: " + b"x" * 60_000 + b"\r\n\r\n", 431),
            (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20_000 + b"\r\n", 431), (b"GET /" + b"x" * 200_000, 431),
            (post + b"Content-Length: 1000000000\r\n\r\n", 413), (post + b"Content-Length: -1\r\n\r\n", 400),
            (post + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400), (chunked + b"xyz\r\n", 400),
            (chunked + b"3\r\nabcXYZ\r\n", 400), (chunked + b"ffffffffffffffffff\r\n", 400), (chunked + b"40000000\r\nabc", 413)):
        with server.connect() as connection:
            try:
                connection.sendall(request)
            except (BrokenPipeError, ConnectionResetError):
                pass  # refused before the request was complete
            (got, kind, body), = answers_of(connection, 1)
            assert got == status, (request[:80], got, body)
            check_error(kind, body, status)


def test_what_two_programs_may_read_differently(server, *_):
    """Each request is refused once, the connection ends, and the request hidden in its body is not answered."""
    hidden = wire("GET", "/v1/models")
    for lines, status in (
            ("Transfer-Encoding: chunked, gzip", 400), ("Transfer-Encoding: gzip, chunked", 501), ("Transfer-Encoding: identity", 400),
            ("Transfer-Encoding: xchunked\r\nContent-Length: 4", 400), ("Transfer-Encoding: chunked\r\nContent-Length: 4", 400),
            ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", 400), ("Content-Length: 4\r\nContent-Length: 4", 400),
            ("Content-Length: 4, 4", 400), ("Content-Length: +4", 400), ("Transfer-Encoding:\x0bchunked", 400),
            ("Host: other", 400), ("Content-Encoding: gzip\r\nContent-Length: 4", 415)):
        with server.connect() as connection:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n" + lines.encode("latin-1") + b"\r\n\r\n" + hidden)
            said = b""
            while piece := connection.recv(1 << 16):
                said += piece
        assert re.findall(rb"HTTP/1\.1 (\d+) ", said) == [b"%d" % status], (lines, said[:300])
    for request, status in ((b"GET /version HTTP/1.1\r\n\r\n", 400), (b"GET /version HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
                            (b"GET http://localhost/version HTTP/1.1\r\nHost: localhost\r\n\r\n", 200), (b"GET /version HTTP/1.0\r\n\r\n", 200)):
        with server.connect() as connection:
            connection.sendall(request)
            assert connection.recv(12) == b"HTTP/1.1 %d" % status, request


def test_pages_of_other_sites(server, *_):
    body = json.dumps({"prompt": "a", "max_tokens": 1})
    for headers, status in (
            ({"Host": "rebound.example"}, 403), ({"Host": "localhost.rebound.example"}, 403), ({"Origin": "https://page.example"}, 403),
            ({"Origin": "null"}, 403), ({"Host": "10.0.0.7:8000"}, 200), ({"Host": "localhost"}, 200),
            ({"Host": "localhost:81", "Origin": "http://localhost:81"}, 200), ({"Host": "localhost:81", "Origin": "http://localhost:82"}, 403)):
        for path in ("/v1/completions", "/tokenize"):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=SECONDS)
            connection.request("POST", path, body if path.startswith("/v1") else '{"prompt": "a"}', headers)
            response = connection.getresponse()
            text = response.read()
            assert response.status == status, (headers, path, response.status, text)
            connection.close()


def test_half_closed(server, *_):
    """A client that only closes its sending side gets all answers; short requests get no early answer."""
    body = json.dumps({"prompt": "a", "max_tokens": 3, "temperature": 0}).encode()
    stream = json.dumps({"prompt": "a", "max_tokens": 900, "ignore_eos": True, "stream": True}).encode()
    for requests, want in ((wire("POST", "/v1/completions", body), [b"200"]), (wire("GET", "/health") * 3, [b"200"] * 3),
                           (wire("POST", "/v1/completions", stream), [b"200"])):
        with server.connect() as connection:
            connection.sendall(requests)
            connection.shutdown(socket.SHUT_WR)
            said = b""
            while piece := connection.recv(1 << 16):
                said += piece
        got = [s for s in re.findall(rb"HTTP/1\.1 (\d+) ", said) if s != b"100"]
        assert got == want, (got, want)
        assert requests[:60].find(b"/health") > 0 or b"[DONE]" in said or b"finish_reason" in said


def test_answers_that_would_be_too_large(server, *_):
    ids = [5] * 1000
    for path, body, status in (
            ("/v1/completions", {"prompt": ids, "max_tokens": 1, "prompt_logprobs": 272, "n": 128}, 400),
            ("/v1/completions", {"prompt": [ids] * 400, "max_tokens": 1, "echo": True, "logprobs": 100}, 400),
            ("/v1/completions", {"prompt": ["a"] * 32, "max_tokens": 1000, "n": 32, "logprobs": 100}, 400),
            ("/v1/completions", {"prompt": ["a"] * 500, "max_tokens": 1, "cache_salt": "x" * 1_000_000}, 200),
            ("/v1/completions", {"prompt": ["a"] * 500, "max_tokens": 1, "stop_token_ids": [5] * 500_000}, 400),
            ("/v1/completions", {"prompt": "a", "max_tokens": 1, "bad_words": ["ab"] * 2_000_000}, 400),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 900, "n": 128, "logprobs": True, "top_logprobs": 100}, 400),
            ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 9, "stop_sequences": ["a" * 5000]}, 400),
            ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 9, "stop_sequences": ["a"] * 5000}, 400)):
        got, _, text = server.post(path, body)
        assert got == status, (str(body)[:120], got, text[:300])


def test_health_during_large_answers(server, *_):
    large = {"prompt": [5] * 1000, "max_tokens": 1, "prompt_logprobs": 272, "n": 2}
    over, worst = threading.Event(), 0.0

    def ask():
        while not over.is_set():
            assert server.post("/v1/completions", large)[0] in (200, 503)

    clients = [threading.Thread(target=ask, daemon=True) for _ in range(3)]
    for one in clients:
        one.start()
    for _ in range(40):
        start = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=SECONDS)
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200
        connection.close()
        worst = max(worst, time.monotonic() - start)
        time.sleep(0.05)
    over.set()
    for one in clients:
        one.join(SECONDS)
    print(f"/health during large answers: {worst * 1000:.0f} ms at most")
    assert worst < 2, worst  # 100 ms on an idle machine


def test_one_peer_and_the_memory_of_bodies(server, *_):
    """Incomplete bodies use up one address's share of memory; another address is still served, even with a large body.
    """
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 30000000\r\n\r\n"
    greedy, refused = [], 0
    for _ in range(10):
        connection = server.connect()
        try:
            connection.sendall(head + b" " * 29_000_000)
        except OSError:
            refused += 1
        greedy.append(connection)
    other = http.client.HTTPConnection("127.0.0.1", server.port, timeout=SECONDS, source_address=("127.0.0.2", 0))
    other.request("POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 1, "user": "x" * 20_000_000}))
    response = other.getresponse()
    assert response.status == 200, response.read()[:300]
    other.close()
    assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 1})[0] in (200, 503)
    for connection in greedy:
        connection.close()
    end = time.monotonic() + SECONDS  # their memory is released
    while server.post("/v1/completions", {"prompt": "a", "max_tokens": 1, "user": "x" * 20_000_000})[0] == 503:
        assert time.monotonic() < end, "the memory of bodies that ended is not given back"
        time.sleep(0.05)


def test_bodies(server, *_):
    chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    nested = {}
    for _ in range(5000):
        nested = {"type": "object", "properties": {"a": nested}}
    try:
        deep = json.dumps(nested)
    except RecursionError:
        deep = '{"type":"object","properties":{"a":' * 5000 + "{}" + "}}" * 5000
    schema = '{"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": %s}}}'
    wide = {"$defs": {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 20} for i in range(30)}, "$ref": "#/$defs/d0"}
    wide["$defs"]["d30"] = {"type": "array", "items": {"type": "string", "minLength": 100_000}, "minItems": 100_000}
    double = "{% set n = namespace(s='x' * 1000) %}{% for i in range(1000) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}"
    loop = "{% for i in range(100000000) %}{% for j in range(100000000) %}x{% endfor %}{% endfor %}"
    keys = b'{"prompt": "a"' + b"".join(b', "k%d": 0' % i for i in range(100_000)) + b"}"
    for path, body in (
            ("/v1/completions", keys), ("/v1/completions", b"[" * 1_000_000), ("/v1/completions", b'{"prompt": "\xff\xfe"}'),
            ("/v1/completions", b'{"prompt": "\xc0\x80"}'), ("/v1/completions", b'{"prompt": "\\ud800"}'), ("/v1/completions", b""),
            ("/v1/completions", b'{"prompt": "a", "max_tokens": 1e400}'), ("/v1/completions", {"prompt": "x" * 4_000_000}),
            ("/v1/completions", {"prompt": "a", "n": 1 << 40}), ("/v1/completions", {"prompt": [["a"]]}),
            ("/v1/completions", {"prompt": "a", "logit_bias": {"-5": 1}}), ("/v1/chat/completions", {**chat, "messages": 5}),
            ("/v1/chat/completions", {**chat, "chat_template": double}), ("/v1/chat/completions", {**chat, "chat_template": loop}),
            ("/v1/chat/completions", {**chat, "chat_template": "{% if"}), ("/v1/chat/completions", (schema % deep).encode()),
            ("/v1/chat/completions", (schema % json.dumps(wide)).encode()),
            ("/v1/chat/completions", {**chat, "structured_outputs": {"regex": "((a{1,1000}){1,1000}){1,1000}"}}),
            ("/v1/chat/completions", {**chat, "structured_outputs": {"regex": "(" * 100_000}}),
            ("/v1/chat/completions", {**chat, "structured_outputs": {"grammar": "root ::= root root | root"}}),
            ("/v1/messages", b"{"), ("/v1/responses", b"{"), ("/tokenize", b'{"prompt": 5}'), ("/detokenize", {"tokens": [1 << 40]})):
        server.refused(path, body, 400)
    server.refused("/nowhere", {}, 404)


def test_cut_at_every_byte(server, *_):
    request = wire("POST", "/v1/completions", json.dumps({"prompt": "ab", "max_tokens": 200, "stream": True}).encode())
    for cut in range(len(request) + 1):
        with server.connect() as connection:
            connection.sendall(request[:cut])
        if cut and cut < len(request):  # a peer that only stops writing gets an answer or an end
            with server.connect() as connection:
                connection.sendall(request[:cut])
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):
                    pass


def test_pipelining(server, *_):
    body = json.dumps({"prompt": "a", "max_tokens": 3, "temperature": 0}).encode()
    pair = wire("POST", "/v1/completions", body) + wire("GET", "/v1/models") + wire("POST", "/v1/completions", b"{")
    with server.connect() as connection:
        threading.Thread(target=connection.sendall, args=(pair * 50,), daemon=True).start()
        answers = answers_of(connection, 150)
    assert [a[0] for a in answers] == [200, 200, 400] * 50, [a[0] for a in answers]
    assert len({json.loads(a[2])["choices"][0]["text"] for a in answers[::3]}) == 1


def test_disconnects_at_random_steps(server, count, seed):
    rng = random.Random(seed)
    body = json.dumps({"prompt": "a", "max_tokens": 300, "ignore_eos": True, "stream": True, "n": 2}).encode()
    request, open_ones = wire("POST", "/v1/completions", body), []
    for _ in range(count // 4):
        connection = server.connect()
        connection.sendall(request)
        open_ones.append((connection, rng.randrange(0, 6)))
        if len(open_ones) > 8:
            gone, reads = open_ones.pop(rng.randrange(len(open_ones)))
            with gone:
                for _ in range(reads):
                    gone.recv(rng.randrange(1, 400))
    for connection, _ in open_ones:
        connection.close()


def test_more_answers_than_a_queue_holds(server, *_):
    server.refused("/v1/completions", {"prompt": ["a"] * 64, "n": 128, "max_tokens": 2}, 400)


def full_queue(program):
    """With one running and four waiting answers the queue is full: the next request gets a time to retry after."""
    server = Server(program, "--max-num-seqs", "1", "--queue", "4")
    long = json.dumps({"prompt": "a", "n": 4, "max_tokens": 1000, "ignore_eos": True, "stream": True}).encode()
    end, status = time.monotonic() + SECONDS, 200
    while status == 200:  # repeats if all four were answered before the next request was read
        assert time.monotonic() < end, "the queue was never full"
        with server.connect() as waits:
            waits.sendall(wire("POST", "/v1/completions", long))
            if waits.recv(12) != b"HTTP/1.1 200":
                continue  # an earlier request is not cancelled yet
            status, headers, text = server.post("/v1/completions", {"prompt": "a", "n": 4, "max_tokens": 1})
    assert status == 429, text
    check_error(headers.get("Content-Type"), text, 429)
    assert int(headers["Retry-After"]) >= 1
    server.stop()
    print("a full queue: ok")


def quiet(server):
    """Waits until the server holds no resources of earlier requests."""
    end = time.monotonic() + SECONDS
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=SECONDS)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        held = sum(float(v) for v in re.findall(r"^vllm:num_requests_(?:running|waiting)\{.*\} (\S+)$", text, re.M))
        if held == 0 and server.descriptors() <= server.first_descriptors + 2:
            return
        assert time.monotonic() < end, f"{held} requests and {server.descriptors()} descriptors are left"
        time.sleep(0.05)


def killed(program, want):
    """kill -9 under load: connections of clients end, and the next server gives the same answers."""
    server, wrong, served = Server(program), [], threading.Semaphore(0)

    def client():
        while True:
            try:
                if said(server) != want:
                    wrong.append("another answer")
                served.release()
            except (ConnectionError, http.client.HTTPException):
                return
            except Exception as error:  # anything else would be an error of the server
                wrong.append(repr(error))
                return

    clients = [threading.Thread(target=client) for _ in range(8)]
    for one in clients:
        one.start()
    for _ in range(16):
        assert served.acquire(timeout=SECONDS)
    server.process.kill()
    server.process.wait(SECONDS)
    for one in clients:
        one.join(SECONDS)
    assert not wrong, wrong
    again = Server(program)
    assert said(again) == want
    again.stop()
    print("killed under load: ok")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("program")
    p.add_argument("--connections", type=int, default=2000)
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = a.connections + 200
    assert hard == resource.RLIM_INFINITY or hard >= need, f"{need} descriptors are needed, {hard} are allowed"
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, need), hard))
    server = Server(a.program)
    want = said(server)
    server.first_descriptors, before = server.descriptors(), server.peak()
    wrong, asked, over = [], [0, 0], threading.Event()

    def bystander(me):
        while not over.is_set():
            try:
                if said(server) != want:
                    wrong.append("another answer")
            except Exception as error:
                wrong.append(repr(error))
            asked[me] += 1

    bystanders = [threading.Thread(target=bystander, args=(i,), daemon=True) for i in range(2)]
    for one in bystanders:
        one.start()
    try:
        for name, test in [(n, f) for n, f in globals().items() if n.startswith("test_")]:
            start = time.monotonic()
            test(server, a.connections, a.seed)
            assert server.process.poll() is None, f"the server ended with {server.process.returncode}"
            assert not wrong, (name, wrong[:3])
            print(f"{name}: ok, {time.monotonic() - start:.1f} s, peak + {(server.peak() - before) / 2**20:.0f} MiB", flush=True)
    finally:
        over.set()
    for one in bystanders:
        one.join(SECONDS)
    assert not wrong and min(asked) > 0, (wrong[:3], asked)
    quiet(server)
    assert server.peak() - before <= BOUND, f"memory grew by {(server.peak() - before) >> 20} MiB"
    server.stop()
    print(f"{sum(asked)} concurrent answers equal those of a quiet server")
    full_queue(a.program)
    killed(a.program, want)


if __name__ == "__main__":
    main()
