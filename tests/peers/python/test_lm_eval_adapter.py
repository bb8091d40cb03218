"""lm-evaluation-harness over nibble.lm_eval: log-likelihoods equal those of a sum over prompt log-probabilities, and its own task runs."""

import json
import pathlib
import shutil
import subprocess
import sys
import urllib.request

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


def test_loglikelihoods_are_the_servers(model):
    from lm_eval.api.instance import Instance

    lm = NibbleLM(str(model))
    pairs = [("The capital of France is", " Paris"), ("one two", " three four"), ("a b c", " d e f g")]
    got = lm.loglikelihood([Instance("loglikelihood", {}, p, i) for i, p in enumerate(pairs)])
    with nibble.serve(model, port=0) as server:
        for (context, continuation), (score, greedy) in zip(pairs, got):
            begin, whole = len(lm.tok_encode(context)), lm.tok_encode(context + continuation)
            body = json.dumps({"prompt": whole, "max_tokens": 1, "prompt_logprobs": 1}).encode()
            request = urllib.request.Request(server.url + "/v1/completions", body, {"Content-Type": "application/json"})
            places = json.loads(urllib.request.urlopen(request, timeout=60).read())["choices"][0]["prompt_logprobs"][begin:]
            steps = [place[str(token)] for place, token in zip(places, whole[begin:])]
            assert score == pytest.approx(sum(s["logprob"] for s in steps), abs=1e-6)
            assert greedy == all(s["rank"] == 1 for s in steps)


def without_bos(model, folder):
    """The model with a tokenizer that adds no token to a text."""
    shutil.copytree(model, folder)
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    assert tokenizer["post_processor"] is not None
    file.write_text(json.dumps({**tokenizer, "post_processor": None}))
    return folder


def write_tasks(folder):
    """A task of each kind: choices, perplexity, generation."""
    (folder / "data.jsonl").write_text("".join(
        json.dumps({"q": f"{i} and", "choices": [" one", " two"], "a": i % 2, "text": f"Line {i} of a text. " * 8}) + "\n" for i in range(6)))
    common = "dataset_path: json\ndataset_kwargs:\n  data_files:\n    test: " + str(folder / "data.jsonl") + "\ntest_split: test\n"
    (folder / "choices.yaml").write_text(
        "task: tiny_choices\n" + common + "output_type: multiple_choice\ndoc_to_text: '{{q}}'\ndoc_to_choice: choices\ndoc_to_target: a\n")
    (folder / "rolling.yaml").write_text(
        "task: tiny_rolling\n" + common + "output_type: loglikelihood_rolling\ndoc_to_text: ''\ndoc_to_target: '{{text}}'\n"
        "metric_list:\n  - metric: word_perplexity\n  - metric: bits_per_byte\n")
    # Without a temperature, the adapter of vLLM samples with temperature 1, the model "hf" does not sample.
    (folder / "words.yaml").write_text(
        "task: tiny_words\n" + common + "output_type: generate_until\ndoc_to_text: '{{q}}'\ndoc_to_target: ' one'\n"
        "generation_kwargs:\n  until: ['.']\n  max_gen_toks: 6\n  do_sample: false\n  temperature: 0.0\nmetric_list:\n  - metric: exact_match\n")
    return folder


def agree(ours, theirs):
    """The results of two models over the tasks of write_tasks(), with the scores of float32."""
    a, b = (r["results"]["tiny_rolling"]["bits_per_byte,none"] for r in (ours, theirs))
    assert a == pytest.approx(b, rel=1e-4)
    for x, y in zip(ours["samples"]["tiny_choices"], theirs["samples"]["tiny_choices"]):
        for (score, greedy), (expected, greedy_there) in zip(x["filtered_resps"], y["filtered_resps"]):
            assert float(score) == pytest.approx(float(expected), abs=2e-3) and str(greedy) == str(greedy_there)
    texts = [[s["filtered_resps"][0] for s in r["samples"]["tiny_words"]] for r in (ours, theirs)]
    assert len(texts[0]) == 6 and texts[0] == texts[1]


# A text of tiny_rolling has about 130 tokens: with 48 it is cut into windows, the last of which has more context.
@pytest.mark.parametrize("words", ["", ",max_length=48", ",add_bos_token=False", ",prefix_token_id=5,max_length=40"])
@pytest.mark.parametrize("adds", [True, False], ids=["bos", "plain"])
def test_tasks_run_and_agree_with_transformers(model, tmp_path, words, adds):
    import lm_eval
    import lm_eval.tasks

    folder = model if adds else without_bos(model, tmp_path / "plain")
    manager = lm_eval.tasks.TaskManager(include_path=str(write_tasks(tmp_path)), include_defaults=False)
    run = dict(tasks=["tiny_choices", "tiny_rolling", "tiny_words"], task_manager=manager, log_samples=True)
    ours = lm_eval.simple_evaluate(model="nibble", model_args=f"model={folder},compute=f32{words}", **run)
    theirs = lm_eval.simple_evaluate(model="hf", model_args=f"pretrained={folder},dtype=float32{words}", device="cpu", **run)
    agree(ours, theirs)


def test_the_command_line(model, tmp_path):
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    done = subprocess.run([sys.executable, "-m", "nibble.lm_eval", "--model", "nibble", "--model_args", f"model={model}", "--tasks",
                           "tiny_choices", "--include_path", write_tasks(tasks), "--output_path", tmp_path / "out"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "tiny_choices" in done.stdout and list((tmp_path / "out").rglob("results*.json"))
