"""Tests processes of `nibble train --ranks N`: `ranks.py build/cpu/nibble`

Any number of ranks gives the same model, log (except times) and checkpoints. A run resumes with another number of
ranks, also after a kill or Ctrl-C. Impossible requests give one line in bounded time.
"""
import os
import signal
import socket
import sys
import tempfile
import time

from rank_runs import RankRuns, ended, free_port, wait_for_checkpoint

runs = RankRuns(os.path.abspath(sys.argv[1]), "train", {"seconds", "seconds_left", "tokens_per_second", "tflops", "memory_gib", "time"}.__contains__)
CHAT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "data", "chat"))
STEPS = 60
CONFIG = f"""model: {CHAT}
random_start: true
steps: {STEPS}
batch: 5
sequence: 96
data: {{text: text.txt}}
saving: {{every: 10, keep: 10}}
optimizer: {{learning_rate: 0.01}}
"""


def child_of(process):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as stat:
                parent = int(stat.read().rsplit(")", 1)[1].split()[1])
        except OSError:  # the process ended meanwhile
            continue
        if parent == process.pid:
            return int(pid)
    raise AssertionError(f"{process.args} has no child")


def main():
    with open("config.yaml", "w") as file:
        file.write(CONFIG)
    with open("text.txt", "w") as file:
        file.write("the quick brown fox jumps over the lazy dog and runs away. " * 60)
    for n in (1, 2, 3):
        runs.run(["config.yaml", "-o", f"of{n}", "--ranks", str(n)])
        assert len(runs.log(f"of{n}")) == STEPS
        runs.same(f"of{n}", "of1")
    print("1, 2 and 3 ranks: the same model, log and checkpoints")

    port = free_port()
    ranks = [runs.by_mpirun(port, r, "config.yaml", "mpi") for r in (1, 0)]
    for process in ranks:
        ended(process, 0)
    runs.same("mpi", "of1")
    print("ranks with the environment of mpirun, over TCP: the same results")

    for number, resumed in ((2, "1"), (1, "3"), (2, "3")):
        out = f"killed{number}{resumed}"
        process = runs.start(["config.yaml", "-o", out, "--ranks", str(number)])
        wait_for_checkpoint(out, process)
        victim = child_of(process) if number > 1 else process.pid
        os.kill(victim, signal.SIGKILL)
        begin = time.time()
        if number > 1:
            said = ended(process, 1, 20)
            assert "rank 1 of 2 has ended" in said, said
        else:
            process.communicate()
        assert time.time() - begin < 20
        # trailing "/", as shells complete it
        runs.run(["config.yaml", "-o", out + "/", "--ranks", resumed, "--resume"])
        runs.same(out, "of1")
    print("kill -9 of a rank: one line, and a run resumed with another number of ranks gives the same bits")

    process = runs.start(["config.yaml", "-o", "stopped", "--ranks", "2"], start_new_session=True)
    wait_for_checkpoint("stopped", process)
    os.killpg(process.pid, signal.SIGINT)
    assert "--resume" in ended(process, 1, 20)
    runs.run(["config.yaml", "-o", "stopped", "--ranks", "3", "--resume"])
    runs.same("stopped", "of1", checkpoints=False)
    print("Ctrl-C: saved, and goes on")

    with open("fork.yaml", "w") as file:
        file.write(CONFIG.replace(f"steps: {STEPS}", f"steps: {STEPS + 6}") + "fork: of1\noutput: fork\nprecision: fp8_delayed\n")
    for n in (1, 2):
        runs.run(["fork.yaml", "-o", f"fork{n}", "--ranks", str(n)])
    runs.same("fork2", "fork1")
    print("a fork in another recipe: the same with 1 and 2 ranks")

    with open("config.yaml") as file:
        other = file.read().replace("learning_rate: 0.01", "learning_rate: 0.02")
    with open("other.yaml", "w") as file:
        file.write(other)
    port = free_port()
    ranks = [runs.by_mpirun(port, 0, "config.yaml", "no"), runs.by_mpirun(port, 1, "other.yaml", "no")]
    for process in ranks:
        assert "another job" in ended(process, 1, 20)
    said = runs.run(["config.yaml", "-o", "no", "--ranks", "2", "--device", "cuda:97"], 1)
    assert said.count("\n") == 1, said
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        said = ended(runs.by_mpirun(taken.getsockname()[1], 0, "config.yaml", "no"), 1, 20)
        assert "in use" in said, said
    said = runs.run(["config.yaml", "-o", "no", "--ranks", "3"], 1,
                 {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "NIBBLE_ADDRESS": f"127.0.0.1:{free_port()}"})
    assert "--ranks 3, but the launcher started 2" in said, said
    assert not os.path.exists("no")
    print("another config, a port in use, another number of ranks: refused with an error")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        main()
