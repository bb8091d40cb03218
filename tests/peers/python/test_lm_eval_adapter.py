"""lm-evaluation-harness over nibble.lm_eval: log-likelihoods equal those of a sum over prompt log-probabilities, and its own task runs."""

import json
import pathlib
import subprocess
import sys

import pytest

import nibble
from nibble.lm_eval import NibbleLM

ROOT = pathlib.Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chat") / "model"
    subprocess.run([sys.executable, ROOT / "tests/oracles/tiny_chat_model.py", folder], check=True)
    return folder


def test_loglikelihoods(model):
    from lm_eval.api.instance import Instance

    lm = NibbleLM(str(model))
    pairs = [("The capital of France is", " Paris"), ("one two", " three four"), ("", "hello")]
    got = lm.loglikelihood([Instance("loglikelihood", {}, p, i) for i, p in enumerate(pairs)])
    context, continuation = lm.tok_encode(pairs[0][0]), lm.tok_encode(pairs[0][0] + pairs[0][1])
    scores = lm.llm.generate({"prompt_token_ids": continuation}, nibble.SamplingParams(max_tokens=1, prompt_logprobs=0))[0].prompt_logprobs
    expected = sum(s[t].logprob for s, t in zip(scores[len(context):], continuation[len(context):]))
    assert got[0][0] == pytest.approx(expected) and len(got) == 3 and all(s < 0 for s, _ in got)
    rolling = lm.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, ("hello there world",), 0)])
    assert rolling[0] < 0
    answers = lm.generate_until([Instance("generate_until", {}, ("Hello", {"until": ["\n"], "max_gen_toks": 4}), 0)])
    assert len(answers) == 1 and isinstance(answers[0], str)


def test_a_task_runs(model, tmp_path):
    import lm_eval

    (tmp_path / "data.jsonl").write_text("".join(json.dumps({"q": f"{i} and", "choices": [" one", " two"], "a": i % 2}) + "\n" for i in range(6)))
    (tmp_path / "tiny.yaml").write_text(
        "task: tiny\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: " + str(tmp_path / "data.jsonl") +
        "\ntest_split: test\noutput_type: multiple_choice\ndoc_to_text: '{{q}}'\ndoc_to_choice: choices\ndoc_to_target: a\n")
    manager = lm_eval.tasks.TaskManager(include_path=str(tmp_path), include_defaults=False)
    result = lm_eval.simple_evaluate(model="nibble", model_args=f"model={model}", tasks=["tiny"], task_manager=manager)
    assert 0 <= result["results"]["tiny"]["acc,none"] <= 1
