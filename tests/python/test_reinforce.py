"""Reinforcement learning with a judge in Python: rewards, several turns, answers without a reward, exceptions, Ctrl-C."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest
from conftest import ROOT

import nibble


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "chat"
    subprocess.run([sys.executable, ROOT / "tests/oracles/tiny_chat_model.py", folder], check=True)
    return folder


def config(model, out, **grpo):
    return {"policy": {"model_name": model, "max_total_sequence_length": 96, "generation": {"max_new_tokens": 8}},
            "grpo": {"num_prompts_per_step": 2, "num_generations_per_prompt": 2, "max_num_steps": 2, **grpo},
            "data": {"task": "sum", "prompt": "{}", "chat": False}, "output": out}


PROGRAM = """import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    print(json.dumps({"id": asked["id"], "reward": (len(asked["text"]) + len(asked["expected"])) % 5 / 4}), flush=True)
"""


def by_length(answers):
    return [(len(a["text"]) + len(a["expected"])) % 5 / 4 for a in answers]


def model_bytes(run):
    return (pathlib.Path(run) / "model/model.safetensors").read_bytes()


def test_a_function_and_a_program_that_judge_alike_give_the_same_model(chat_model, run_program, tmp_path):
    (tmp_path / "judge.py").write_text(PROGRAM)
    program = config(chat_model, tmp_path / "program")
    program["env"] = {"command": [sys.executable, str(tmp_path / "judge.py")]}
    (tmp_path / "rl.yaml").write_text(json.dumps(program, default=os.fspath))
    run_program("rl", tmp_path / "rl.yaml", "--quiet")
    run = nibble.reinforce(config(chat_model, tmp_path / "python"), judge=by_length)
    assert run.steps == 2 and any(step["reward"] > 0 for step in run.log)
    assert model_bytes(tmp_path / "program") == model_bytes(tmp_path / "python")


def test_turns_carry_state_and_observations(chat_model, tmp_path):
    seen = []

    def judge(answers):
        seen.extend(answers)
        return [{"reward": 0.5, "done": a["turn"] == 1, "observation": "" if a["turn"] else "again", "state": {"turns": [a["turn"]]}}
                for a in answers]

    run = nibble.reinforce(config(chat_model, tmp_path / "run", max_rollout_turns=2, max_num_steps=1), judge=judge)
    first, second = ([a for a in seen if a["turn"] == turn] for turn in (0, 1))
    assert len(first) == 4 and second and all(a["state"] is None for a in first)
    assert all(a["state"] == {"turns": [0]} for a in second) and all(a["prompt"] and a["expected"] for a in seen)
    assert 0.5 <= run.log[0]["reward"] <= 1 and run.log[0]["failures"] == 0


def test_answers_without_a_reward_are_left_out(chat_model, tmp_path):
    run = nibble.reinforce(config(chat_model, tmp_path / "run", max_num_steps=1),
                           judge=lambda answers: [None if i == 0 else 1 for i in range(len(answers))])
    assert run.log[0]["failures"] == 1 and run.log[0]["reward"] == 1
    run = nibble.reinforce(config(chat_model, tmp_path / "nan", max_num_steps=1),
                           judge=lambda answers: [float("nan"), *[1] * (len(answers) - 1)])
    assert run.log[0]["failures"] == 1


@pytest.mark.parametrize("bad,message", [([1], "1 rewards to 4 answers"), (["good"] * 4, "a reward is 'good'"), ([{"score": 1}] * 4, "score")])
def test_replies_that_are_no_rewards_are_errors(chat_model, tmp_path, bad, message):
    with pytest.raises(nibble.UsageError, match=message):
        nibble.reinforce(config(chat_model, tmp_path / "run"), judge=lambda answers: bad)


def test_an_exception_stops_the_run_and_resume_gives_the_same_model(chat_model, tmp_path):
    calls = []

    def judge(answers):
        calls.append(1)
        if len(calls) == 2:
            raise ZeroDivisionError("from the judge")
        return by_length(answers)

    run = config(chat_model, tmp_path / "run")
    with pytest.raises(ZeroDivisionError, match="from the judge"):
        nibble.reinforce(run, judge=judge)
    assert nibble.reinforce(run, judge=judge, resume=True).steps == 2
    calls[:] = [1, 1]
    nibble.reinforce(config(chat_model, tmp_path / "whole"), judge=judge)
    assert model_bytes(tmp_path / "run") == model_bytes(tmp_path / "whole")
    with pytest.raises(nibble.NibbleError, match="env.function"):
        nibble.reinforce({**run, "grpo": {**run["grpo"], "max_num_steps": 3}}, judge=by_length, resume=True)


def test_ctrl_c_inside_the_judge_ends_the_run(chat_model, tmp_path):
    def judge(answers):
        os.kill(os.getpid(), signal.SIGINT)
        return by_length(answers)

    with pytest.raises(KeyboardInterrupt):
        nibble.reinforce(config(chat_model, tmp_path / "run"), judge=judge)


def test_a_function_needs_a_caller(chat_model, program, tmp_path):
    (tmp_path / "rl.yaml").write_text(json.dumps({**config(chat_model, tmp_path / "run"), "env": {"function": "rewards.good"}}, default=os.fspath))
    done = subprocess.run([program, "rl", tmp_path / "rl.yaml"], capture_output=True, text=True)
    assert done.returncode == 1 and "env.function: rewards.good is a function of a program that calls nibble as a library" in done.stderr
    both = {**config(chat_model, tmp_path / "run"), "env": {"command": ["judge"]}}
    with pytest.raises(nibble.RecipeError, match="env.function has no effect with env.command"):
        nibble.reinforce(both, judge=by_length)
