"""Tests processes of `nibble rl --ranks N`: `rl_ranks.py build/cpu/nibble`

Any number of ranks gives the same model, log (except times and rank statistics), samples and checkpoints: with an
environment of several turns, asynchronous rollouts, an FP8 cache, another precision for rollouts, and programs in a
sandbox. kill -9 of a rank while it generates, judges or learns ends the others in bounded time with one line each.
Another number of ranks resumes to the same bits, also after Ctrl-C. Impossible requests give one line before anything
starts.
"""
import json
import os
import signal
import sys
import tempfile
import time

from rank_runs import RankRuns, ended, free_port, wait_for_checkpoint

runs = RankRuns(os.path.abspath(sys.argv[1]), "rl", lambda k: k.endswith("seconds") or k.startswith("rank_") or k == "time", more=["samples.json"])
CHAT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "data", "chat"))

# Judges in two turns. At the request whose number is in the file `kill` it kills the calling rank, before or after the
# reply. The file is removed first, so that the next run survives.
JUDGE = """
import json, os, signal, sys
def end(when, n):
    try:
        wanted = open("kill").read()
    except FileNotFoundError:  # there is none, or another rank's judge has it
        return
    if wanted == "%s %s %d" % (os.environ.get("NIBBLE_RANK", "0"), when, n):
        os.remove("kill")
        os.kill(os.getppid(), signal.SIGKILL)
        sys.exit(0)
for n, line in enumerate(sys.stdin):
    end("before", n)
    r = json.loads(line)
    value = sum(map(ord, r["text"])) % 7
    more = r["turn"] == 0 and value % 2 == 1
    reply = {"id": r["id"], "reward": value / 7, "done": not more, "state": [r["turn"], r["text"]]}
    if more:
        reply["observation"] = "again"
    print(json.dumps(reply), flush=True)
    end("after", n)
"""
POLICY = f"""policy:
  model_name: {CHAT}
  max_total_sequence_length: 96
  optimizer: {{lr: 0.003}}
"""
RUNS = {
    "plain": POLICY + """  generation: {max_new_tokens: 10}
grpo: {num_prompts_per_step: 3, num_generations_per_prompt: 2, max_num_steps: 6, val_period: 3, max_val_samples: 4}
loss_fn: {reference_policy_kl_penalty: 0.01}
data: {task: sort, chat: false, prompt: "Q: {}\\nA:"}
checkpointing: {save_period: 2, keep_top_k: 9}
""",
    "turns": POLICY + """  generation: {max_new_tokens: 10}
grpo: {num_prompts_per_step: 3, num_generations_per_prompt: 2, max_num_steps: 5, max_rollout_turns: 2}
loss_fn: {reference_policy_kl_penalty: 0.01}
data: {task: sort, chat: false, prompt: "Q: {}\\nA:"}
env: {command: [python3, judge.py]}
checkpointing: {save_period: 1, keep_top_k: 9}
""",
    "async": POLICY + """  generation: {max_new_tokens: 24, kv_cache_dtype: fp8, kv_cache_percentile: 90}
grpo: {num_prompts_per_step: 3, num_generations_per_prompt: 2, max_num_steps: 5, max_rollout_turns: 2,
       async_grpo: {enabled: true, prompts_in_flight: 6, tokens_per_round: 5, max_trajectory_age_steps: 2}}
loss_fn: {reference_policy_kl_penalty: 0, use_importance_sampling_correction: true}
data: {task: sort, chat: false, prompt: "Q: {}\\nA:"}
env: {command: [python3, judge.py]}
checkpointing: {save_period: 1, keep_top_k: 9}
""",
    "code": POLICY + """  precision: fp8_block
  generation: {max_new_tokens: 8}
grpo: {num_prompts_per_step: 3, num_generations_per_prompt: 2, max_num_steps: 2}
loss_fn: {reference_policy_kl_penalty: 0}
data: {train: rows.jsonl, input_key: text, output_key: test_list, reward: code, chat: false, format: "[aeiou]",
       code: {seconds: 5, memory_mib: 256}}
""",
    "apart": POLICY + """  train_global_batch_size: 3
  generation: {max_new_tokens: 10, precision: fp8_block, kv_cache_dtype: fp8}
grpo: {num_prompts_per_step: 3, num_generations_per_prompt: 2, max_num_steps: 3}
loss_fn: {reference_policy_kl_penalty: 0.01}
data: {task: sort, chat: false, prompt: "Q: {}\\nA:"}
checkpointing: {save_period: 1, keep_top_k: 9}
""",
}


def any_number_is_one():
    for name in RUNS:
        for n in (1, 2, 3):
            process = runs.start([f"{name}.yaml", "-o", f"{name}{n}", "--ranks", str(n)])
            out, err = process.communicate(timeout=120)
            if "data.reward: sandbox:" in err and n == 1:  # the machine forbids user namespaces
                print("code: not run, " + err.strip())
                break
            assert process.returncode == 0, (name, n, out, err)
            runs.same(f"{name}{n}", f"{name}1")
            with open(f"{name}{n}/train.jsonl") as lines:
                last = json.loads(lines.readlines()[-1])
            assert ("rank_tokens" in last) == (n > 1), last
            if n > 1:
                assert len(last["rank_tokens"]) == n and (last["mismatch_tokens"] == 0) == (name != "apart"), last
                assert "async_grpo" in RUNS[name] or sum(last["rank_tokens"]) == last["generated_tokens"], last
        else:
            print(f"{name}: 1, 2 and 3 ranks, the same model, log, samples and checkpoints")


def kills():
    # A rank is killed while it judges, or after its last judgement of a step: during the update or the next rollouts.
    for name, ranks, resumed, kill in (("turns", 2, 1, "1 before 0"), ("turns", 3, 2, "2 before 4"), ("turns", 3, 1, "0 after 5"),
                                       ("turns", 2, 3, "0 before 9"), ("async", 3, 2, "1 after 3"), ("async", 2, 3, "0 before 7"),
                                       ("async", 2, 1, "1 after 6")):
        out = f"killed {name} {kill}"
        with open("kill", "w") as file:
            file.write(kill)
        process = runs.start([f"{name}.yaml", "-o", out, "--ranks", str(ranks), "--quiet"])
        begin = time.time()
        said = ended(process, -signal.SIGKILL if kill.startswith("0") else 1)
        assert not os.path.exists("kill"), f"{out}: no process reached it"
        assert time.time() - begin < 40, "the others wait"
        lines = said.splitlines()
        assert len(lines) == ranks - 1 and all("has ended" in line for line in lines), said
        assert not os.path.exists(f"{out}/model")
        runs.run([f"{name}.yaml", "-o", out, "--ranks", str(resumed), "--resume"])
        runs.same(out, f"{name}1")
    print("kill -9 of a rank: one line of each of the others, and a run resumed with another number of ranks gives the same bits")


def main():
    for name, config in RUNS.items():
        with open(f"{name}.yaml", "w") as file:
            file.write(config)
    with open("judge.py", "w") as file:
        file.write(JUDGE)
    with open("rows.jsonl", "w") as file:
        for i in range(4):
            file.write(json.dumps({"text": f"Write f{i}.", "test_list": [f"assert f{i}(1) == 2"]}) + "\n")
    any_number_is_one()

    port = free_port()
    ranks = [runs.by_mpirun(port, r, "plain.yaml", "mpi") for r in (1, 0)]
    for process in ranks:
        ended(process, 0)
    runs.same("mpi", "plain1")
    print("ranks with the environment of mpirun, over TCP: the same results")

    kills()

    # A signal to one rank alone stops all of them after a complete step.
    with open("long.yaml", "w") as file:
        file.write(RUNS["plain"].replace("max_num_steps: 6", "max_num_steps: 100000").replace("save_period: 2", "save_period: 1"))
    process = runs.start(["long.yaml", "-o", "stopped", "--ranks", "3", "--quiet"])
    wait_for_checkpoint("stopped", process)
    process.send_signal(signal.SIGINT)
    said = ended(process, 1, 30)
    assert said.count("\n") == 1 and "resume it with --resume" in said, said
    done = len(runs.log("stopped"))
    runs.run(["long.yaml", "-o", "stopped", "--ranks", "2", "--resume", "--steps", str(done + 2)])
    runs.run(["long.yaml", "-o", "unstopped", "--steps", str(done + 2)])
    runs.same("stopped", "unstopped", checkpoints=False)
    print("a signal to one rank: all ranks save, and the run resumes")

    refused = {"--ranks 4": "num_prompts_per_step 3: 4 ranks need", "--ranks 2 --device cuda:97": "", "--ranks 2 --gpus 2": "",
            "--ranks 0": ""}
    for arguments, part in refused.items():
        said = runs.run(["plain.yaml", "-o", "no", *arguments.split()], 2 if "--gpus" in arguments or "--ranks 0" in arguments else 1)
        assert part in said, said
        assert "--gpus" in arguments or "--ranks 0" in arguments or said.count("\n") == 1, said
    with open("fp8.yaml", "w") as file:
        file.write(RUNS["plain"].replace("policy:", "policy:\n  precision: fp8").replace(
            "{reference_policy_kl_penalty: 0.01}", "{reference_policy_kl_penalty: 0, use_importance_sampling_correction: true}"))
    said = runs.run(["fp8.yaml", "-o", "no", "--ranks", "2"], 1)
    assert said.count("\n") == 1 and "2 ranks would not give the bits of one" in said, said
    with open("other.yaml", "w") as file:
        file.write(RUNS["plain"].replace("lr: 0.003", "lr: 0.002"))
    port = free_port()
    ranks = [runs.by_mpirun(port, 0, "plain.yaml", "no"), runs.by_mpirun(port, 1, "other.yaml", "no")]
    for process in ranks:
        assert "another job" in ended(process, 1, 20)
    assert not os.path.exists("no")
    print("too few prompts, per-tensor scales, another config: refused before anything starts")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        main()
