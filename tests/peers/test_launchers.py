"""Quantizes and generates with ranks that real launchers start: Slurm with two virtual nodes on this machine, Open MPI,
and torchrun.

    test_launchers.py NIBBLE

Every output must equal that of one process. Exit status 77: Slurm or Open MPI (Debian's packages) is missing, or the
test does not run as root. Slurm runs without systemd, with its own configuration in a temporary folder.
"""
import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import time

ORACLES = pathlib.Path(__file__).resolve().parents[1] / "oracles"
sys.path.insert(0, str(ORACLES))
import quantize_ranks  # noqa: E402
import random_model  # noqa: E402
from rank_runs import free_port  # noqa: E402

SLURM_CONF = """ClusterName=one
SlurmctldHost=localhost
AuthType=auth/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/log/ctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
SlurmctldTimeout=10
SlurmdTimeout=10
KillWait=2
NodeName=n[1-2] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[17101-17102] CPUs=4 RealMemory=1000 State=UNKNOWN
SlurmctldPort=17100
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """Two virtual nodes on this machine. Starts munged only if none answers."""

    def __init__(self, folder):
        self.folder = folder
        for name in ("state", "spool", "log"):
            os.makedirs(os.path.join(folder, name))
        self.conf = os.path.join(folder, "slurm.conf")
        with open(self.conf, "w") as file:
            file.write(SLURM_CONF.format(folder=folder))
        self.environment = dict(os.environ, SLURM_CONF=self.conf)
        self.pids = []
        if subprocess.run(["munge", "-n"], capture_output=True).returncode:
            os.makedirs("/run/munge", exist_ok=True)
            for path in ("/run/munge", "/var/lib/munge", "/var/log/munge"):
                shutil.chown(path, "munge")
            os.chmod("/run/munge", 0o755)
            subprocess.run(["su", "-s", "/bin/sh", "munge", "-c", f"/usr/sbin/munged --force --pid-file=/run/munge/nibble-test.pid"], check=True)
            self.pids.append("/run/munge/nibble-test.pid")
        subprocess.run(["slurmctld", "-f", self.conf], check=True)
        self.pids.append(os.path.join(folder, "slurmctld.pid"))
        time.sleep(1)
        for node in ("n1", "n2"):
            subprocess.run(["slurmd", "-f", self.conf, "-N", node], check=True)
            self.pids.append(os.path.join(folder, f"slurmd-{node}.pid"))
        for _ in range(100):
            seen = subprocess.run(["sinfo", "-h", "-o", "%t %D"], env=self.environment, capture_output=True, text=True).stdout
            if seen.strip() == "idle 2":
                return
            time.sleep(0.3)
        raise AssertionError(f"Slurm's nodes are not idle: {seen}")

    def end(self):
        for path in reversed(self.pids):
            try:
                with open(path) as file:
                    os.kill(int(file.read()), 15)
            except (OSError, ValueError):
                pass
        time.sleep(1)


def launched(runs, expected, words, arguments, environment, what):
    place = runs.place("launched")
    done = subprocess.run([*words, runs.nibble, "quantize", *arguments], cwd=place, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{what}: exit {done.returncode}: {done.stderr}"
    runs.same(place, expected, what)
    print(f"{what}: the bytes of one process")


def generated(runs, words, environment, what):
    """Answers of two ranks that run one model equal those of one process; only rank 0 prints."""
    prompts = os.path.join(runs.folder, "prompts.jsonl")
    with open(prompts, "w") as file:
        file.write("".join(f'{{"prompt": "number {i}"}}\n' for i in range(5)))
    command = [runs.nibble, "generate", os.path.join(quantize_ranks.DATA, "chat"), "--jsonl", prompts, "--quiet", "--threads", "1", "--max-tokens", "60", "--seed", "3",
               "--temperature", "1"]
    alone = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    done = subprocess.run([*words, *command, "--tensor-parallel-size", "2"], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{what}: exit {done.returncode}: {done.stderr}"
    assert alone.stdout.count("\n") == 5 and done.stdout == alone.stdout, (what, alone.stdout, done.stdout)
    print(f"{what}: the answers of one process")


def launch_slurm(runs, expected, arguments, environment):
    """`nibble launch slurm` submits, follows the log and returns the status; a second command runs after the first."""
    place = runs.place("launched")

    def launch(name, then, words):
        return subprocess.run([runs.nibble, "launch", "slurm", "--name", name, "--nodes", "2", "--ranks-per-node", "2", "--program", runs.nibble,
                               "--time", "00:05:00", "--log", os.path.join(runs.folder, f"{name}.log"), "--script", os.path.join(runs.folder, f"{name}.sbatch"),
                               "--then", then, "--", *words], cwd=place, env=environment, capture_output=True, text=True, timeout=300)

    done = launch("chain", "verify out", ["quantize", *arguments])
    assert done.returncode == 0 and "problems" not in done.stderr and done.stdout, done
    runs.same(place, expected, "launch slurm, 2 nodes x 2 ranks")
    again = launch("broken", "verify out", ["quantize", "no-such-model", *arguments[1:]])
    assert again.returncode == 1 and again.stderr.count("\n") == 1 and "broken" in again.stderr, again
    print("launch slurm: quantize, then verify; the status of a job that failed")


def main():
    missing = [name for name in ("srun", "slurmctld", "slurmd", "munged", "mpirun") if not shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin")]
    if missing or os.geteuid() != 0:
        print(f"missing: {missing or 'root'}")
        sys.exit(77)
    os.environ["PATH"] += ":/usr/sbin"
    p = random_model.parser()
    p.add_argument("nibble")
    p.set_defaults(hidden=256, inner=512, layers=4, vocab=2000, shards=2)
    a = p.parse_args()
    runs = quantize_ranks.Ranks(os.path.abspath(a.nibble), None)
    slurm = None
    try:
        source = os.path.join(runs.folder, "source")
        random_model.make(source, a)
        arguments = [source, "-o", "out", "--recipe", "nvfp4_four_over_six", "--weights-only", "--threads", "1", "--max-shard-size", "300KB"]
        whole = runs.place("whole")
        runs.alone(whole, arguments)
        expected = quantize_ranks.content(whole)
        launched(runs, expected, ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "3"], arguments, dict(os.environ), "mpirun -n 3")
        generated(runs, ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"], dict(os.environ), "mpirun -n 2")
        torchrun = os.path.join(os.path.dirname(sys.executable), "torchrun")
        if os.path.exists(torchrun):
            launched(runs, expected, [torchrun, "--standalone", "--nproc-per-node", "2", "--no-python"], arguments, dict(os.environ), "torchrun, 2 processes")
            generated(runs, [torchrun, "--standalone", "--nproc-per-node", "2", "--no-python"], dict(os.environ), "torchrun, 2 processes")
        slurm = Slurm(os.path.join(runs.folder, "slurm"))
        launched(runs, expected, ["srun", "-N2", "-n4", "--ntasks-per-node=2"], arguments, slurm.environment, "srun -N2 -n4")
        generated(runs, ["srun", "-N2", "-n2"], dict(slurm.environment, NIBBLE_ADDRESS=f"127.0.0.1:{free_port()}"), "srun -N2 -n2")
        # a batch script is one process although it has the variables of a task
        script = os.path.join(runs.folder, "job.sh")
        place = runs.place("launched")
        with open(script, "w") as file:
            file.write(f"#!/bin/sh\nexec {runs.nibble} quantize {' '.join(arguments)}\n")
        subprocess.run(["sbatch", "-W", "-N2", "-n4", "-D", place, "-o", os.path.join(runs.folder, "job.log"), script], env=slurm.environment, check=True, timeout=300)
        runs.same(place, expected, "sbatch without srun")
        print("sbatch without srun: one process")
        launch_slurm(runs, expected, arguments, slurm.environment)
    finally:
        if slurm:
            slurm.end()
        shutil.rmtree(runs.folder)


if __name__ == "__main__":
    main()
