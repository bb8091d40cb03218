"""Tests `nibble serve` over ranks under load: `serve_ranks.py build/cpu/nibble [--all]`

Several clients at once get the bits of one rank, over 2 and 3 ranks. Ranks are killed or stopped under load: clients get
complete and correct answers, errors or broken connections; the other ranks end within seconds and name the rank.
--all: 20 kills at random times. Needs only Python's standard library.
"""
import atexit
import concurrent.futures
import http.client
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

import random_model
from server_faults import BROKEN, MODEL, SECONDS, Server, random_ask

SILENCE = 10  # seconds, as in the guide of several ranks
MARGIN = 20   # seconds for a loaded machine


def model_for_three(folder):
    """Writes a model with 12 heads and 3 heads of keys and values, and the tokenizer and template of tests/data/chat."""
    a = random_model.parser().parse_args(["--hidden", "768", "--inner", "384", "--layers", "2", "--vocab", "272"])
    random_model.make(folder, a)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(os.path.join(MODEL, name), os.path.join(folder, name))
    with open(os.path.join(folder, "model.safetensors"), "r+b") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        for name, tensor in json.loads(file.read(size)).items():
            if name.endswith("norm.weight"):
                begin, end = tensor["data_offsets"]
                file.seek(8 + size + begin)
                file.write(b"\x80\x3f" * ((end - begin) // 2))  # 1.0
    return folder


class RankedServer(Server):
    def __init__(self, program, ranks, work, *flags, model=MODEL):
        self.ranks, self.work = ranks, work
        super().__init__(program, "--threads", "1", "--kv-memory", "16M", "--tensor-parallel-size", str(ranks), *flags, model=model)

    def start(self):
        command, self.processes = self.command, []
        address = f"unix:{os.path.join(self.work, 'meet')}"
        for rank in reversed(range(self.ranks)):
            with open(os.path.join(self.work, f"err.{rank}"), "w") as log:
                one = subprocess.Popen(command, stderr=log, env={**os.environ, "NIBBLE_RANK": str(rank), "NIBBLE_RANKS": str(self.ranks), "NIBBLE_ADDRESS": address})
            atexit.register(one.kill)
            self.processes.insert(0, one)
        self.process = self.processes[0]
        end = time.monotonic() + SECONDS
        while True:
            try:
                if self.post("/health", None)[0] == 200:
                    return
            except BROKEN:
                pass
            assert all(p.poll() is None for p in self.processes), [self.errors(r) for r in range(self.ranks)]
            assert time.monotonic() < end, "the server is not ready"
            time.sleep(0.01)

    def errors(self, rank):
        with open(os.path.join(self.work, f"err.{rank}")) as file:
            return file.read()

    def stop(self):
        self.process.terminate()
        for rank, process in enumerate(self.processes):
            assert process.wait(SECONDS) == 0, (rank, process.returncode, self.errors(rank))
            assert self.errors(rank) == "", self.errors(rank)

    def strike(self, victim, signal_number, said, limit):
        """Sends a signal to a rank; the others must end within `limit` seconds with one line that contains `said`."""
        self.processes[victim].send_signal(signal_number)
        begin = time.monotonic()
        for rank, process in enumerate(self.processes):
            if rank == victim:
                continue
            process.wait(max(0.1, limit - (time.monotonic() - begin)))
            line = self.errors(rank)
            assert process.returncode not in (0, -signal.SIGSEGV, -signal.SIGABRT), (rank, process.returncode, line)
            assert line.count("\n") == 1 and said in line, (rank, line, said)
        return time.monotonic() - begin


def answer(server, body):
    """Returns ("answer", content), ("error", text) or ("broken", "")."""
    try:
        status, text = server.post("/v1/completions", body)
    except BROKEN:
        return "broken", ""
    if status != 200:
        assert status in (429, 500, 503) and "error" in json.loads(text), (status, text[:300])
        return "error", text.decode()
    if not body.get("stream"):
        return "answer", [(c["text"], c["finish_reason"], c["logprobs"]["token_logprobs"]) for c in sorted(json.loads(text)["choices"], key=lambda c: c["index"])]
    events = [e[6:] for e in text.decode().split("\n\n") if e.startswith("data: ")]
    if not events or events[-1] != "[DONE]":
        failed = events and "error" in events[-1]
        return ("error", events[-1]) if failed else ("broken", "")
    out = [["", None, []] for _ in range(body.get("n", 1))]
    for event in map(json.loads, events[:-1]):
        if "error" in event:
            return "error", json.dumps(event)
        for choice in event["choices"]:
            one = out[choice["index"]]
            one[0] += choice["text"]
            one[1] = choice["finish_reason"] or one[1]
            one[2] += choice["logprobs"]["token_logprobs"] if choice["logprobs"] else []
    return "answer", [tuple(one) for one in out]


class Load:
    """Clients that ask until they are stopped. Every answer must be that of one rank."""

    def __init__(self, server, asks, expected, clients=6):
        self.counts, self.wrong, self.ends = {"answer": 0, "error": 0, "broken": 0}, [], threading.Event()
        self.server, self.asks, self.expected, self.lock = server, asks, expected, threading.Lock()
        self.threads = [threading.Thread(target=self.client, args=(i,)) for i in range(clients)]
        for thread in self.threads:
            thread.start()

    def client(self, i):
        while not self.ends.is_set():
            try:
                kind, content = answer(self.server, self.asks[i % len(self.asks)])
            except Exception as error:
                kind, content = "wrong", repr(error)
            with self.lock:
                if kind == "wrong" or (kind == "answer" and content != self.expected[i % len(self.asks)]):
                    self.wrong.append((i, content))
                else:
                    self.counts[kind] += 1
            if kind != "answer":
                time.sleep(0.05)
            i += 1

    def stop(self):
        self.ends.set()
        for thread in self.threads:
            thread.join(SECONDS)
        assert not any(t.is_alive() for t in self.threads), "a client hangs"
        assert not self.wrong, self.wrong[:2]
        return self.counts


def one_rank(program, model, asks):
    server = Server(program, "--threads", "1", "--kv-memory", "16M", model=model)
    expected = [answer(server, ask) for ask in asks]
    server.stop()
    assert all(kind == "answer" for kind, _ in expected), expected
    return [content for _, content in expected]


def under_load(program, work, model, ranks, count):
    rng = random.Random(ranks)
    asks = [{**random_ask(rng), "logprobs": 1} for _ in range(count)]
    expected = one_rank(program, model, asks)
    server = RankedServer(program, ranks, work, "--max-num-seqs", "8", model=model)
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        for i, (kind, content) in enumerate(pool.map(lambda ask: answer(server, ask), asks)):
            assert kind == "answer" and content == expected[i], (asks[i], kind, content, expected[i])
    server.stop()
    print(f"{count} random requests of 12 clients over {ranks} ranks: the bits of one rank", flush=True)


def long_asks():
    return [{"prompt": f"number {i}", "max_tokens": 40 + 10 * i, "seed": i, "temperature": 1, "logprobs": 1, "ignore_eos": True, "stream": i % 2 == 0} for i in range(6)]


def kills(program, work, models, rounds):
    rng = random.Random(3)
    expected = {ranks: one_rank(program, model, long_asks()) for ranks, model in models.items()}
    slowest, total = 0, {"answer": 0, "error": 0, "broken": 0}
    for number in range(rounds):
        ranks = 2 if number % 2 == 0 else 3
        victim = number // 2 % ranks
        server = RankedServer(program, ranks, work, model=models[ranks])
        load = Load(server, long_asks(), expected[ranks])
        time.sleep(rng.uniform(0, 1.5))
        slowest = max(slowest, server.strike(victim, signal.SIGKILL, f"rank {victim} of {ranks} has ended", MARGIN))
        for kind, n in load.stop().items():
            total[kind] += n
    assert total["answer"] > 0 and total["error"] + total["broken"] > 0, total
    print(f"{rounds} kills under load ({total}): the others name the rank, after at most {slowest:.1f} s", flush=True)


def drains(program, work, model, ranks):
    """All ranks get SIGTERM, as pods of a group and processes of a terminal do: running requests are answered."""
    asks = [{**ask, "max_tokens": 400} for ask in long_asks()]
    expected = one_rank(program, model, asks)
    server = RankedServer(program, ranks, work, model=model)
    with concurrent.futures.ThreadPoolExecutor(len(asks)) as pool:
        answers = [pool.submit(answer, server, ask) for ask in asks]
        while server.metrics()["vllm:num_requests_running"] < len(asks):
            assert not any(a.done() for a in answers), "a request ended before the signal"
            time.sleep(0.002)
        for process in server.processes:
            process.terminate()
        for i, one in enumerate(answers):
            assert one.result(SECONDS) == ("answer", expected[i]), (i, one.result())
    for rank, process in enumerate(server.processes):
        assert process.wait(SECONDS) == 0 and server.errors(rank) == "", (rank, process.returncode, server.errors(rank))
    print(f"SIGTERM to {ranks} ranks: {len(asks)} running requests are answered", flush=True)


def stops(program, work, models, cases):
    for ranks, victim, loaded in cases:
        expected = one_rank(program, models[ranks], long_asks()) if loaded else []
        server = RankedServer(program, ranks, work, model=models[ranks])
        load = Load(server, long_asks(), expected) if loaded else None
        time.sleep(0.5)
        seconds = server.strike(victim, signal.SIGSTOP, "", SILENCE + MARGIN)
        # A rank that hears of it only by the end of rank 0 names rank 0.
        named = [r for r in range(ranks) if f"rank {victim} of {ranks} stands still" in server.errors(r)]
        assert (0 if victim else 1) in named, [server.errors(r) for r in range(ranks)]
        assert seconds > SILENCE / 2, f"noticed after {seconds:.1f} s: not by silence"
        server.processes[victim].send_signal(signal.SIGCONT)
        server.processes[victim].wait(MARGIN)
        assert server.processes[victim].returncode != 0 and "has ended" in server.errors(victim), server.errors(victim)
        counts = load.stop() if load else "without load"
        print(f"rank {victim} of {ranks} is stopped ({counts}): noticed after {seconds:.1f} s", flush=True)


def main():
    program, everything = os.path.abspath(sys.argv[1]), "--all" in sys.argv
    with tempfile.TemporaryDirectory() as work:
        models = {2: MODEL, 3: model_for_three(os.path.join(work, "three"))}
        for ranks, model in models.items():
            under_load(program, work, model, ranks, 200 if everything else 40)
        drains(program, work, MODEL, 2)
        kills(program, work, models, 20 if everything else 3)
        stops(program, work, models, ((2, 1, True), (2, 0, False), (3, 2, True), (3, 1, False)) if everything else ((3, 2, True), (2, 0, False)))


if __name__ == "__main__":
    main()
