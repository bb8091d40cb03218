"""trl's GRPO with rollouts by nibble: three steps of trl's trainer in vLLM's mode "colocate", over the alias of nibble.vllm.

The oracle is trl itself: it compares the log-probabilities of each sampled token with those of its own model. They agree in
every step only if nibble has the weights of that step.
"""

import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("trl")

# A program for trl and vLLM; the first two lines are nibble's.
PROGRAM = """
import nibble.vllm
nibble.vllm.alias()
import json, sys
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

model, out, sleeps = sys.argv[1], sys.argv[2], sys.argv[3] == "sleep"

def reward(completions, completion_ids, **_):
    return [float(sum(token % 2 for token in ids)) for ids in completion_ids]

prompts = ["The quick brown fox", "hello world", "Numbers: 1 2 3", "one two"] * 4
config = GRPOConfig(
    output_dir=out, use_cpu=True, bf16=False, use_vllm=True, vllm_mode="colocate", vllm_enable_sleep_mode=sleeps,
    per_device_train_batch_size=8, num_generations=4, max_completion_length=12, max_steps=3, learning_rate=0.01, beta=0.0,
    logging_steps=1, save_strategy="no", report_to="none", temperature=0.9, gradient_checkpointing=False,
    model_init_kwargs={"dtype": "float32"})
trainer = GRPOTrainer(model=model, reward_funcs=reward, args=config, train_dataset=Dataset.from_list([{"prompt": p} for p in prompts]))
before = {n: p.detach().clone() for n, p in trainer.model.named_parameters()}
trainer.train()
moved = max(float((p.detach() - before[n]).abs().max()) for n, p in trainer.model.named_parameters())
print("RESULT " + json.dumps({"log": trainer.state.log_history, "moved": moved}))
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    import pathlib

    root = pathlib.Path(__file__).resolve().parents[3]
    folder = tmp_path_factory.mktemp("chat") / "model"
    subprocess.run([sys.executable, root / "tests/oracles/tiny_chat_model.py", folder], check=True)
    return folder


@pytest.fixture(scope="module")
def smollm(tiny, tmp_path_factory):
    """The shape of SmolLM2-135M with random weights and the tokenizer of the small model."""
    import shutil

    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("smollm") / "model"
    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
                         vocab_size=49152, max_position_embeddings=512, tie_word_embeddings=True, bos_token_id=269, eos_token_id=271)
    LlamaForCausalLM(config).bfloat16().save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tiny / name, folder / name)
    return folder


def run(model, out, *words):
    import json

    done = subprocess.run([sys.executable, "-c", textwrap.dedent(PROGRAM), model, out, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("RESULT ")).removeprefix("RESULT "))


def check(result, moved):
    steps = [entry for entry in result["log"] if "loss" in entry]
    assert len(steps) == 3 and result["moved"] > moved
    for step in steps:
        assert step["sampling/sampling_logp_difference/max"] < 0.15, step
        assert step["sampling/sampling_logp_difference/mean"] < 0.03, step
        assert step["completions/mean_length"] > 0


@pytest.mark.parametrize("words", ["awake", "sleep"])
def test_three_steps(tiny, tmp_path, words):
    check(run(tiny, tmp_path, words), moved=0.01)


def test_three_steps_of_135m_parameters(smollm, tmp_path):
    check(run(smollm, tmp_path, "awake"), moved=0.01)
