"""Runs several processes and compares their results, for ranks.py and rl_ranks.py."""
import json
import os
import socket
import subprocess
import time


class RankRuns:
    """Runs a command. nibble: the program; command: `train` or `rl`; varies(key): whether a number of the log depends
    on the run; more: further files of a run to compare.
    """

    def __init__(self, nibble, command, varies, more=()):
        self.nibble, self.command, self.varies, self.more = nibble, command, varies, more

    def start(self, arguments, environment=None, **more):
        return subprocess.Popen([self.nibble, self.command, *arguments, "--threads", "1"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, env={**os.environ, **(environment or {})}, **more)

    def run(self, arguments, status=0, environment=None):
        return ended(self.start(arguments, environment), status)

    def by_mpirun(self, port, rank, config, output):
        return self.start([config, "-o", output], {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "2", "NIBBLE_ADDRESS": f"127.0.0.1:{port}"})

    def log(self, folder):
        with open(f"{folder}/train.jsonl") as lines:
            steps = [json.loads(line) for line in lines][1:]
        return [{k: v for k, v in step.items() if not self.varies(k)} for step in steps]

    def files(self, folder):
        names = list(self.more)
        for part in ("model", "checkpoints"):
            names += [f"{part}/{name}" for name in sorted(os.listdir(f"{folder}/{part}")) if name.endswith(".safetensors")]
        kept = {}
        for name in names:
            with open(f"{folder}/{name}", "rb") as file:
                kept[name] = file.read()
        return kept

    def same(self, folder, like, checkpoints=True):
        a, b = self.files(folder), self.files(like)
        assert any(name.startswith("model/") for name in b) and (not checkpoints or a.keys() == b.keys()), (folder, a.keys(), b.keys())
        for name in b:
            if checkpoints or not name.startswith("checkpoints/"):
                assert a[name] == b[name], f"{folder}/{name} is not {like}'s"
        assert self.log(folder) == self.log(like), f"the log of {folder} is not that of {like}"


# After this all ranks have closed the pipes, so they have ended.
def ended(process, status, seconds=60):
    out, err = process.communicate(timeout=seconds)
    assert process.returncode == status, (process.args, process.returncode, out, err)
    return out + err


def wait_for_checkpoint(folder, process):
    end = time.time() + 60
    while not os.path.isdir(f"{folder}/checkpoints") or not any(n.endswith(".safetensors") for n in os.listdir(f"{folder}/checkpoints")):
        assert process.poll() is None and time.time() < end, (folder, process.poll())
        time.sleep(0.005)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
