"""Reinforcement learning with a reward in Python: python judge.py MODEL OUT"""

import sys

import nibble


def short_answers(answers):
    """A right answer earns 1, and up to 0.2 more if it is short."""
    return [(a["expected"] in a["text"]) * (1 + 0.2 / max(len(a["text"]), 1)) for a in answers]


model, out = sys.argv[1:]
config = {
    "policy": {"model_name": model, "max_total_sequence_length": 96, "generation": {"max_new_tokens": 8}},
    "grpo": {"num_prompts_per_step": 2, "num_generations_per_prompt": 4, "max_num_steps": 2},
    "data": {"task": "sum", "chat": False}, "output": out,
}
run = nibble.reinforce(config, judge=short_answers, on_step=lambda step: print(f"step {step['step']}: reward {step['reward']:.3f}"))
print(f"{run.steps} steps; the policy is in {out}/model")
