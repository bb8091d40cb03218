"""Models in process: answers, streams, servers."""

import asyncio
import copy
import json
import os
import pickle
import subprocess
import sys
import threading
import time
import urllib.request

import pytest
from conftest import ROOT

import nibble
from nibble.vllm import LLM, SamplingParams, StructuredOutputsParams

PROMPTS = ["Hello there", "The capital of France is", "one two three"]


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "chat"
    subprocess.run([sys.executable, ROOT / "tests/oracles/tiny_chat_model.py", folder], check=True)
    return folder


@pytest.fixture(scope="module")
def llm(chat_model):
    with LLM(chat_model, max_num_seqs=8) as llm:
        yield llm


def test_answers_are_those_of_the_program(llm, chat_model, run_program, tmp_path):
    params = SamplingParams(temperature=0.8, top_p=0.9, max_tokens=12, seed=7)
    got = llm.generate(PROMPTS, params)
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS) + "\n")
    for i, (prompt, answer) in enumerate(zip(PROMPTS, got)):
        assert answer.prompt == prompt and answer.finished and len(answer.outputs) == 1
        if i == 0:  # the program's first prompt has the same random numbers
            text = run_program("generate", chat_model, prompt, "--temperature", "0.8", "--top-p", "0.9", "--max-tokens", "12",
                               "--seed", "7", "--quiet")
            assert text.strip("\n") == (prompt + answer.outputs[0].text).strip("\n") or text.strip("\n") == answer.outputs[0].text.strip("\n")
    again = llm.generate(PROMPTS, params)
    assert [a.outputs for a in again] == [a.outputs for a in got]
    assert llm.generate(PROMPTS[0], params)[0].outputs == got[0].outputs


def test_one_parameter_each_and_token_prompts(llm):
    ids = llm.get_tokenizer().encode("Hello there")
    each = [SamplingParams(temperature=0, max_tokens=n) for n in (2, 5)]
    short, longer = llm.generate([{"prompt_token_ids": ids}, {"prompt": "Hello there"}], each)
    assert longer.outputs[0].token_ids[:2] == short.outputs[0].token_ids and len(longer.outputs[0].token_ids) == 5
    assert short.outputs[0].finish_reason == "length" and short.prompt_token_ids == ids
    with pytest.raises(nibble.UsageError, match="3 prompts and 2 sampling"):
        llm.generate(PROMPTS, each)


def test_log_probabilities(llm):
    params = SamplingParams(temperature=0, max_tokens=4, logprobs=3, prompt_logprobs=2)
    answer = llm.generate("Hello there", params)[0]
    choice = answer.outputs[0]
    assert len(choice.logprobs) == 4
    for token, scores in zip(choice.token_ids, choice.logprobs):
        assert scores[token].rank == 1 and len(scores) == 3
        assert scores[token].logprob == max(s.logprob for s in scores.values())
    assert choice.cumulative_logprob == pytest.approx(sum(s[t].logprob for t, s in zip(choice.token_ids, choice.logprobs)))
    assert answer.prompt_logprobs[0] is None and len(answer.prompt_logprobs) == len(answer.prompt_token_ids)
    # The score of a token is the same whether it was written or read.
    whole = llm.generate({"prompt_token_ids": answer.prompt_token_ids + choice.token_ids},
                         SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0))[0]
    for token, written, read in zip(choice.token_ids, choice.logprobs, whole.prompt_logprobs[-4:]):
        assert read[token].logprob == written[token].logprob


def test_choices_stop_strings_and_tokens(llm):
    several = llm.generate("Hello", SamplingParams(n=3, temperature=1.5, max_tokens=6, seed=1))[0]
    assert [o.index for o in several.outputs] == [0, 1, 2] and len({tuple(o.token_ids) for o in several.outputs}) > 1
    free = llm.generate("Hello", SamplingParams(temperature=0, max_tokens=8))[0].outputs[0]
    token = free.token_ids[3]
    stopped = llm.generate("Hello", SamplingParams(temperature=0, max_tokens=8, stop_token_ids=[token]))[0].outputs[0]
    assert stopped.finish_reason == "stop" and stopped.stop_reason == token
    assert stopped.token_ids == free.token_ids[: free.token_ids.index(token) + 1]
    word = next((free.text[i : i + 2] for i in range(2, len(free.text) - 2) if free.text[i : i + 2].isascii()), None)
    if word:
        cut = llm.generate("Hello", SamplingParams(temperature=0, max_tokens=8, stop=word))[0].outputs[0]
        assert cut.stop_reason == word and cut.text == free.text[: free.text.index(word)]


def test_guided_output(llm):
    pick = llm.generate("Hello", SamplingParams(max_tokens=20, structured_outputs=StructuredOutputsParams(choice=["red", "blue"])))
    assert pick[0].outputs[0].text in ("red", "blue")
    number = llm.generate("Hello", SamplingParams(max_tokens=20, structured_outputs=StructuredOutputsParams(regex="[0-9]{3}")))
    assert number[0].outputs[0].text.isdigit() and len(number[0].outputs[0].text) == 3
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
    held = llm.generate("Hello", SamplingParams(max_tokens=60, structured_outputs=StructuredOutputsParams(json=schema)))
    assert set(json.loads(held[0].outputs[0].text)) == {"a"}
    with pytest.raises(nibble.UsageError, match="exactly one"):
        StructuredOutputsParams(regex="a", choice=["b"])


def test_chat_and_templates(llm):
    messages = [{"role": "user", "content": "Say hello"}]
    answer = llm.chat(messages, SamplingParams(temperature=0, max_tokens=5))[0]
    tokenizer = llm.get_tokenizer()
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    assert answer.prompt_token_ids == ids
    assert answer.prompt == tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == tokenizer.decode(ids)
    assert llm.generate({"prompt_token_ids": ids}, SamplingParams(temperature=0, max_tokens=5))[0].outputs == answer.outputs
    two = llm.chat([messages, messages], SamplingParams(temperature=0, max_tokens=5))
    assert len(two) == 2 and two[0].outputs == two[1].outputs == answer.outputs
    assert tokenizer.decode(tokenizer.encode("Hello there", False)) == "Hello there"


def test_streams_say_what_generate_says(llm):
    params = SamplingParams(temperature=0, max_tokens=16)
    whole = llm.generate("Hello there", params)[0].outputs[0]
    last = None
    for part in llm.stream("Hello there", params):
        last = part
    assert last.finished and last.outputs[0].text == whole.text and last.outputs[0].token_ids == whole.token_ids
    params.output_kind = nibble.RequestOutputKind.DELTA
    pieces = list(llm.stream("Hello there", params))
    assert "".join(p.outputs[0].text for p in pieces) == whole.text
    iterator = llm.stream("Hello there", SamplingParams(temperature=0, max_tokens=500, ignore_eos=True))
    next(iterator)
    iterator.close()
    assert llm.generate("Hello there", SamplingParams(temperature=0, max_tokens=16))[0].outputs[0].text == whole.text


def test_async_streams(chat_model):
    async def main():
        async with nibble.AsyncLLM(chat_model) as llm:
            params = SamplingParams(temperature=0, max_tokens=10)

            async def one(i):
                out = None
                async for part in llm.generate(f"Prompt {i % 4}", params, request_id=str(i)):
                    out = part
                return out

            answers = await asyncio.gather(*(one(i) for i in range(64)))
            assert all(a.finished and a.request_id == str(i) for i, a in enumerate(answers))
            for i, a in enumerate(answers):
                assert a.outputs[0].token_ids == answers[i % 4].outputs[0].token_ids
            async for _ in llm.generate("Hello", SamplingParams(max_tokens=800, ignore_eos=True)):
                break  # leaving the stream cancels the request
            for _ in range(200):
                if llm.stats()["running"] == 0:
                    break
                await asyncio.sleep(0.02)
            assert llm.stats()["running"] == 0

    asyncio.run(main())


def test_parameters_are_checked_and_are_values():
    p = SamplingParams(temperature=0.5, stop="x", structured_outputs=StructuredOutputsParams(json_object=True))
    assert copy.deepcopy(p) == p and pickle.loads(pickle.dumps(p)) == p and "temperature=0.5" in repr(p)
    for bad in (dict(temperature=-1), dict(top_p=0), dict(top_k=-2), dict(max_tokens=0), dict(n=0), dict(stop=[""]),
                dict(presence_penalty=3), dict(stop="a", detokenize=False)):
        with pytest.raises(ValueError):
            SamplingParams(**bad)


def test_ranks_of_this_process_give_the_same_answers(llm, chat_model):
    params = SamplingParams(temperature=0.8, max_tokens=20, seed=7, logprobs=2)
    with LLM(chat_model, tensor_parallel_size=2) as two:
        for one, other in zip(llm.generate(["Hello", "What"], params), two.generate(["Hello", "What"], params)):
            assert one.outputs[0].token_ids == other.outputs[0].token_ids
            assert one.outputs[0].cumulative_logprob == other.outputs[0].cumulative_logprob


def test_errors_of_models(llm, chat_model, tmp_path):
    with pytest.raises(nibble.UsageError, match="did you mean"):
        LLM(chat_model, max_model_length=10)
    with pytest.raises(nibble.UsageError, match="pipeline_parallel_size=2"):
        LLM(chat_model, pipeline_parallel_size=2)
    with pytest.raises(nibble.NibbleError, match="numbers of ranks that work"):
        LLM(chat_model, tensor_parallel_size=64)
    with pytest.raises(nibble.NibbleError, match="nothing"):
        LLM(tmp_path / "nothing")
    with pytest.raises(nibble.UsageError, match="prompt"):
        llm.generate({"text": "Hello"})
    with pytest.raises(nibble.NibbleError):
        llm.generate([[0] * 5000])
    with pytest.raises(nibble.DeviceError):
        LLM(chat_model, device="cuda")


def test_wrong_types_are_named_and_numbers_of_numpy_are_numbers(llm):
    import numpy as np

    for call, message in ((lambda: llm.generate(None), "prompts is a NoneType"), (lambda: llm.generate([None]), "a prompt is a NoneType"),
                          (lambda: llm.generate([[1, "a"]]), "token ids are not whole numbers"),
                          (lambda: llm.generate({"prompt_token_ids": [1 << 40]}), "a token id is not in"),
                          (lambda: llm.generate("x", {"temperature": 1}), "sampling_params is a dict"),
                          (lambda: llm.generate("\ud800"), "surrogate"), (lambda: llm.get_tokenizer().encode(3), "a text is a int"),
                          (lambda: llm.get_tokenizer().decode(1 << 40), "a token id is not in"),
                          (lambda: SamplingParams(temperature="a"), "temperature is not a number"),
                          (lambda: SamplingParams(max_tokens=1.5), "max_tokens is not a whole number"),
                          (lambda: SamplingParams(stop=3), "stop is neither"), (lambda: SamplingParams(stop=[3]), "stop is neither"),
                          (lambda: llm.generate("x", SamplingParams(logit_bias={1: float("nan")})), "SamplingParams"),
                          (lambda: llm.generate("x", SamplingParams(structured_outputs=StructuredOutputsParams(json="{"))), "no JSON")):
        with pytest.raises(nibble.UsageError, match=message):
            call()
    ids = np.array(llm.get_tokenizer().encode("Hello"))
    params = SamplingParams(temperature=np.float32(0), max_tokens=np.int64(3), stop_token_ids=[np.int64(1)], seed=np.int32(5))
    expected = llm.generate("Hello", SamplingParams(temperature=0, max_tokens=3, stop_token_ids=[1]))[0].outputs
    for prompt in (ids, [ids], {"prompt_token_ids": ids}, list(ids)):
        assert llm.generate(prompt, params)[0].outputs == expected


def test_a_model_that_is_closed_while_threads_ask(chat_model):
    llm, ended = LLM(chat_model), []

    def ask():
        try:
            answers = llm.generate(["Hello"] * 100, SamplingParams(max_tokens=300, ignore_eos=True))
            ended.append(all(a.finished for a in answers))
        except nibble.NibbleError as e:
            ended.append("closed" in str(e))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for t in threads:
        t.start()
    time.sleep(0.1)
    llm.close()
    for t in threads:
        t.join(60)
    assert ended == [True] * 3


def test_close_and_many_models(chat_model):
    def threads():
        return len(os.listdir("/proc/self/task"))

    before = None
    for i in range(12):
        llm = LLM(chat_model, max_model_len=128)
        llm.generate("Hello", SamplingParams(max_tokens=2))
        llm.close()
        llm.close()
        with pytest.raises(nibble.UsageError, match="closed"):
            llm.generate("Hello")
        if i == 1:
            before = threads()
    assert threads() == before


def test_server_in_process(chat_model):
    with nibble.serve(chat_model, max_body="1MB") as server:
        body = json.dumps({"prompt": "Hello there", "max_tokens": 6, "temperature": 0}).encode()
        request = urllib.request.Request(server.url + "/v1/completions", body, {"Content-Type": "application/json"})
        text = json.load(urllib.request.urlopen(request, timeout=60))["choices"][0]["text"]
        assert server.port > 0 and server.name in repr(server) or server.url in repr(server)
    with LLM(chat_model) as llm:
        assert llm.generate("Hello there", SamplingParams(temperature=0, max_tokens=6))[0].outputs[0].text == text
    with pytest.raises(nibble.UsageError, match="did you mean"):
        nibble.serve(chat_model, max_bodi="1MB")


def test_a_forked_child_gets_an_error_and_ends(chat_model):
    code = f"""
import os, nibble
llm = nibble.LLM({str(chat_model)!r})
llm.generate("Hello", nibble.SamplingParams(max_tokens=2))
pid = os.fork()
if pid == 0:
    try:
        llm.generate("Hello")
    except nibble.ForkedError as e:
        os._exit(0 if "spawn" in str(e) else 4)
    os._exit(3)
assert os.waitpid(pid, 0)[1] == 0
llm.generate("Hello", nibble.SamplingParams(max_tokens=2))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stderr == "", done.stderr


def test_exit_with_answers_in_flight(chat_model):
    code = f"""
import asyncio, nibble
llm = nibble.AsyncLLM({str(chat_model)!r})
async def main():
    async for _ in llm.generate("Hello", nibble.SamplingParams(max_tokens=900, ignore_eos=True)):
        return
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stderr == "", done.stderr


def test_ctrl_c_during_generate(chat_model):
    code = f"""
import os, signal, threading, time, nibble
llm = nibble.LLM({str(chat_model)!r})
llm.generate("Hello", nibble.SamplingParams(max_tokens=2))
sent = []
def interrupt():
    time.sleep(0.3)
    sent.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
try:
    llm.generate(["Hello"] * 400, nibble.SamplingParams(max_tokens=900, ignore_eos=True))
    print("finished")
except KeyboardInterrupt:
    print("interrupted", time.monotonic() - sent[0])
assert llm.generate("Hello", nibble.SamplingParams(max_tokens=2))[0].finished
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    word, seconds = done.stdout.split()
    assert word == "interrupted" and float(seconds) < 1.0, done.stdout
