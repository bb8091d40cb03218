"""Tests `nibble plan` and `nibble launch`.

    cluster_jobs.py NIBBLE

The projection's bytes are compared with sums over the tensors of small checkpoints. `launch` runs programs with the names of
Slurm's and Kubernetes' own, which stand in PATH: the commands of the script run on this machine.
"""
import json
import os
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile

DATA = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "data"))
nibble = os.path.abspath(sys.argv[1])


def run(*words, status=0, **options):
    done = subprocess.run([nibble, *words], capture_output=True, text=True, timeout=120, **options)
    assert done.returncode == status, f"{words}: exit {done.returncode}: {done.stderr}"
    return done.stdout if status == 0 else done.stderr


def elements(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    total = {}
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        count = 1
        for d in tensor["shape"]:
            count *= d
        total[name] = count
    return total


def plan(folder):
    with tarfile.open(os.path.join(DATA, "golden", "families.tar.gz")) as archive:
        archive.extractall(folder, filter="data")
    for name in ("qwen3_moe", "llama", "gemma2", "qwen3"):
        model = os.path.join(folder, name)
        if not os.path.exists(os.path.join(model, "model.safetensors")):
            continue
        sizes = elements(os.path.join(model, "model.safetensors"))
        made = json.loads(run("plan", model, "--hosts", "2", "--devices", "1", "--recipe", "w4a16_nvfp4", "--json"))
        figures = {f["name"]: f["value"] for f in made["figures"]}
        assert figures["source"] == 2 * sum(sizes.values()), (name, figures["source"], 2 * sum(sizes.values()))
        assert figures["quantized"] < figures["source"]
        with open(os.path.join(model, "config.json")) as file:
            config = json.load(file)
        if "num_experts" in config:
            part = config["num_experts_per_tok"] / config["num_experts"]
            outside = sum(n for key, n in sizes.items() if ".experts." not in key and key != "model.embed_tokens.weight")
            inside = sum(n for key, n in sizes.items() if ".experts." in key)
            bf16 = json.loads(run("plan", model, "--devices", "1", "--recipe", "mxfp4_mlp_weight_only", "--json"))
            read = {f["name"]: f for f in bf16["figures"]}["read per token"]
            assert read["value"] < 2 * (outside + part * inside), (read, outside, inside)
        limit, one = figures["one sequence, limit"], figures["one sequence"]
        assert abs(limit - 4.28e12 / figures["read per token"]) < 1e-6 * limit and one < limit
        assert all(c["source"] for c in made["constants"])
        config_only = os.path.join(folder, "only")  # no weights
        os.makedirs(config_only, exist_ok=True)
        shutil.copy(os.path.join(model, "config.json"), config_only)
        text = run("plan", config_only, "--devices", "1")
        assert "one sequence" in text and "measured" in text and "assumed" in text
    ultra = json.loads(run("plan", os.path.join(DATA, "projection", "nemotron-3-ultra"), "--devices", "8", "--json"))
    figures = {f["name"]: f["value"] for f in ultra["figures"]}
    assert abs(figures["source"] - 2 * 550e9) < 0.01 * 2 * 550e9, figures["source"]  # its name says 550B
    # 12 attention layers with one of 2 heads of K and V; 48 Mamba layers with 32 of 256 heads and one of 8 groups
    assert figures["cache per rank, of a token"] == 12 * 2 * 128 * 2
    assert figures["states per rank, of a sequence"] == 48 * 4 * (3 * (32 * 64 + 2 * 128) + 32 * 64 * 128)
    assert figures["memory per rank, serving"] > figures["states per rank, of a sequence"] + 8192 * figures["cache per rank, of a token"]
    assert "tpu" in run("plan", config_only, "--device", "tpu", status=2)
    assert "cannot" in run("plan", os.path.join(folder, "nothing"), status=1)
    print("plan: bytes, limits and constants")


def launch(folder):
    tools = os.path.join(folder, "bin")
    os.makedirs(tools)

    def tool(name, text):
        path = os.path.join(tools, name)
        with open(path, "w") as file:
            file.write("#!/bin/sh\n" + text)
        os.chmod(path, 0o755)

    # sbatch runs the script, whose output goes to the log; srun runs the words after its own flags
    tool("sbatch", 'for a in "$@"; do f=$a; done\nlog=$(sed -n "s/^#SBATCH --output=//p" "$f")\nsh "$f" >>"$log" 2>&1\n')
    tool("srun", 'while [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"\n')
    environment = dict(os.environ, PATH=tools + ":" + os.environ["PATH"])
    there = dict(cwd=folder, env=environment)
    done = run("launch", "slurm", "--name", "one", "--program", nibble, "--then", "formats mxfp4", "--", "formats", "nvfp4", **there)
    assert done == run("formats", "nvfp4") + run("formats", "mxfp4"), done
    error = run("launch", "slurm", "--name", "two", "--program", nibble, "--then", "formats nvfp4", "--", "verify", "no such folder", status=1, **there)
    assert error.count("\n") == 1 and "two" in error and "two.log" in error, error
    with open(os.path.join(folder, "two.log")) as file:
        assert "no such folder" in file.read()
    script = run("launch", "slurm", "--nodes", "4", "--ranks-per-node", "2", "--gpus-per-rank", "1", "--dry-run", "--", "quantize", "a b", "-o", "it's", **there)
    assert "#SBATCH --nodes=4\n" in script and "--gres=gpu:2\n" in script and "nibble quantize 'a b' -o 'it'\\''s'\n" in script, script
    assert subprocess.run(["sh", "-n"], input=script, text=True).returncode == 0
    own = os.path.join(folder, "own.tmpl")
    with open(own, "w") as file:
        file.write("run {{command}} on {{nodes}}\n")
    assert run("launch", "slurm", "--template", own, "--nodes", "3", "--dry-run", "--", "recipes", **there) == "run nibble recipes on 3\n"
    with open(own, "w") as file:
        file.write("{{comand}}\n")
    error = run("launch", "slurm", "--template", own, "--dry-run", "--", "recipes", status=1, **there)
    assert "comand" in error and "command" in error, error

    try:
        import yaml
    except ImportError:
        yaml = None
    job = run("launch", "kubernetes", "--name", "q", "--nodes", "4", "--gpus-per-rank", "1", "--then", "verify /models/OUT", "--dry-run", "--", "quantize", "/models/M", "-o", "/models/OUT", **there)
    serve = run("launch", "kubernetes", "--name", "s", "--nodes", "2", "--dry-run", "--", "serve", "/models/OUT", "--host", "0.0.0.0", **there)
    if yaml:
        made = yaml.safe_load(job)
        assert made["kind"] == "Job" and made["spec"]["completions"] == made["spec"]["parallelism"] == 4 and made["spec"]["completionMode"] == "Indexed"
        box = made["spec"]["template"]["spec"]["containers"][0]
        assert box["resources"]["limits"] == {"nvidia.com/gpu": 1} and box["env"] == [{"name": "NIBBLE_RANKS", "value": "4"}]
        line = box["command"][2].replace("nibble ", "echo ")
        for index, expected in (("0", "quantize /models/M -o /models/OUT\nverify /models/OUT\n"), ("3", "quantize /models/M -o /models/OUT\n")):
            got = subprocess.run(["sh", "-c", line], env=dict(os.environ, JOB_COMPLETION_INDEX=index), capture_output=True, text=True)
            assert got.returncode == 0 and got.stdout == expected, (index, got)
        deployment, service = yaml.safe_load_all(serve)
        assert deployment["spec"]["replicas"] == 2 and service["spec"]["selector"] == deployment["spec"]["template"]["metadata"]["labels"]
        box = deployment["spec"]["template"]["spec"]["containers"][0]
        assert box["command"] == ["nibble", "serve", "/models/OUT", "--host", "0.0.0.0"]
        assert {box[p]["httpGet"]["path"] for p in ("readinessProbe", "startupProbe")} == {"/v1/health/ready"} and box["livenessProbe"]["httpGet"]["path"] == "/v1/health/live"
    group = run("launch", "kubernetes", "--name", "g", "--nodes", "4", "--gpus-per-rank", "1", "--dry-run", "--",
                "serve", "/models/OUT", "--host", "0.0.0.0", "--tensor-parallel-size", "4", **there)
    if yaml:
        made, service = yaml.safe_load_all(group)
        parts = made["spec"]["leaderWorkerTemplate"]
        assert made["kind"] == "LeaderWorkerSet" and parts["size"] == 4 and parts["restartPolicy"] == "RecreateGroupOnPodRestart"
        leader, worker = (parts[key]["spec"]["containers"][0] for key in ("leaderTemplate", "workerTemplate"))
        assert leader["command"] == worker["command"] and not any("Probe" in key for key in worker)
        assert {leader[p]["httpGet"]["path"] for p in ("readinessProbe", "startupProbe")} == {"/v1/health/ready"}
        assert service["spec"]["selector"].items() <= parts["leaderTemplate"]["metadata"]["labels"].items()
        assert not service["spec"]["selector"].items() <= parts["workerTemplate"]["metadata"]["labels"].items()
        own = {"LWS_WORKER_INDEX": "3", "LWS_GROUP_SIZE": "4", "LWS_LEADER_ADDRESS": "g-0.g"}
        got = subprocess.run(["sh", "-c", leader["command"][2].replace("exec nibble", "env printenv NIBBLE_RANK NIBBLE_RANKS NIBBLE_ADDRESS #")],
                             env={**os.environ, **own}, capture_output=True, text=True)
        assert got.stdout == "3\n4\ng-0.g:29400\n", got
    tool("kubectl", 'echo "$@" >>calls\ncase "$1" in\napply) cp "$3" applied;;\nlogs) echo "a line of the pod";;\nwait) case "$2" in *complete) sleep 1; exit $DONE;; *) sleep 20;; esac;;\nesac\n')
    there["env"] = dict(environment, DONE="0")
    assert "a line of the pod" in run("launch", "kubernetes", "--name", "q", "--", "quantize", "/models/M", "-o", "/models/OUT", **there)
    with open(os.path.join(folder, "calls")) as file:
        assert "apply -f q.yaml" in file.read()
    print("launch: scripts, manifests, templates, logs and exit statuses" + ("" if yaml else " (manifests not parsed: no PyYAML)"))


folder = tempfile.mkdtemp(prefix="nibble-cluster-")
try:
    plan(os.path.join(folder, "models"))
    launch(folder)
finally:
    shutil.rmtree(folder)
