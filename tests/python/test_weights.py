"""Weights of a running model: new values, versions, pauses, sleep. The oracle is a model that is loaded from the same values."""

import json
import shutil
import struct
import subprocess
import sys
import threading

import ml_dtypes
import numpy as np
import pytest
from conftest import ROOT

import nibble
import nibble.vllm
from nibble import SamplingParams

PROMPTS = ["The quick brown fox", "hello world", "Numbers: 1 2 3"]
PARAMS = SamplingParams(temperature=0, max_tokens=12, logprobs=2, prompt_logprobs=0)


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "chat"
    subprocess.run([sys.executable, ROOT / "tests/oracles/tiny_chat_model.py", folder], check=True)
    return folder


def bf16(x):
    return x.astype(ml_dtypes.bfloat16)


def write_model(source, out, tensors):
    """A copy of a checkpoint with other BF16 tensors."""
    shutil.copytree(source, out)
    for file in out.glob("*.safetensors*"):
        file.unlink()
    header, data = {}, b""
    for name, x in tensors.items():
        raw = bf16(x).tobytes()
        header[name] = {"dtype": "BF16", "shape": list(x.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    (out / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return out


def values_of(folder):
    checkpoint = nibble.open(folder, framework="numpy")
    return {name: checkpoint.tensor(name).astype(np.float32) for name in checkpoint}


@pytest.fixture(scope="module")
def changed(chat_model, tmp_path_factory):
    """Other values of all tensors, and a checkpoint that has them."""
    g = np.random.default_rng(1)
    tensors = {}
    for name, x in values_of(chat_model).items():
        tensors[name] = bf16(x * g.uniform(0.5, 1.5, x.shape)).astype(np.float32)
    return tensors, write_model(chat_model, tmp_path_factory.mktemp("models") / "changed", tensors)


def scores(llm):
    return [(o.outputs[0].token_ids, [{t: p.logprob for t, p in step.items()} for step in o.outputs[0].logprobs],
             [step and {t: p.logprob for t, p in step.items()} for step in o.prompt_logprobs])
            for o in llm.generate(PROMPTS, PARAMS)]


def test_new_weights_answer_as_a_model_that_is_loaded_with_them(chat_model, changed):
    tensors, folder = changed
    with nibble.LLM(folder) as expected, nibble.LLM(chat_model) as llm:
        before = scores(llm)
        assert llm.weight_version == "default"
        llm.update_weights(tensors, version="step 7", partial=False)
        assert llm.weight_version == "step 7"
        assert scores(llm) == scores(expected) != before
        with pytest.raises(nibble.UsageError, match="is missing among the new weights"):  # weights of the last update do not count
            llm.update_weights({"model.norm.weight": tensors["model.norm.weight"]}, partial=False)
        llm.update_weights({name: bf16(x) for name, x in tensors.items()})
        assert scores(llm) == scores(expected) and llm.weight_version == "2"
        llm.load_weights(chat_model)
        assert scores(llm) == before


@pytest.mark.parametrize("recipe,scales", [("w4a16_nvfp4", False), ("nvfp4_four_over_six", False), ("fp8", True), ("nvfp4", True)])
def test_quantized_on_arrival_as_the_job_quantizes(chat_model, changed, tmp_path, recipe, scales):
    tensors, folder = changed
    text = tmp_path / "text.txt"
    text.write_text("\n".join(f"Line {i} says hello to the world and the world says hello." for i in range(80)))
    first = dict(calib_file=text, calib_tokens=512, calib_sequence=128) if scales else dict(weights_only=True)
    nibble.quantize_checkpoint(chat_model, tmp_path / "served", recipe, **first)
    then = dict(input_scales=tmp_path / "served") if scales else dict(weights_only=True)
    nibble.quantize_checkpoint(folder, tmp_path / "expected", recipe, **then)
    with nibble.LLM(tmp_path / "expected") as expected, nibble.LLM(tmp_path / "served") as llm:
        before = scores(llm)
        llm.update_weights(tensors)
        assert scores(llm) == scores(expected) != before
        llm.load_weights(tmp_path / "served")  # quantized files are used as they are
        assert scores(llm) == before


def test_errors_leave_the_old_weights(chat_model, changed, tmp_path):
    tensors, _ = changed
    name = "model.layers.0.mlp.up_proj.weight"
    with nibble.LLM(chat_model) as llm:
        before = scores(llm)
        for bad, error, message in [
                ({"model.nothing.weight": np.zeros((4, 4), np.float32)}, nibble.UsageError, "model.nothing.weight"),
                ({name: np.zeros((4, 4), np.float32)}, nibble.ShapeError, "has shape \\[4, 4\\]"),
                ({name: np.full_like(tensors[name], np.nan)}, nibble.ShapeError, "element 0 is not finite"),
                ({name: tensors[name].astype(np.int32)}, nibble.DTypeError, "int32"), ({}, nibble.UsageError, "no weights")]:
            with pytest.raises(error, match=message):
                llm.update_weights({**({} if not bad else {"model.norm.weight": tensors["model.norm.weight"]}), **bad})
        with pytest.raises(nibble.UsageError, match="is missing among the new weights"):
            llm.update_weights({name: tensors[name]}, partial=False)
        with pytest.raises(nibble.RecipeError):
            llm.update_weights({name: tensors[name]}, recipe="no_recipe")
        assert scores(llm) == before and llm.weight_version == "default"
    nibble.quantize_checkpoint(chat_model, tmp_path / "q", "w4a16_nvfp4")
    with nibble.LLM(tmp_path / "q") as llm, pytest.raises(nibble.UsageError, match="shares a scale with .*: replace both"):
        llm.update_weights({name: tensors[name]})
    (tmp_path / "q/nibble.json").unlink()
    with nibble.LLM(tmp_path / "q") as llm:
        with pytest.raises(nibble.RecipeError, match="name a recipe"):
            llm.update_weights(tensors)
        llm.update_weights(tensors, recipe="w4a16_nvfp4")


def test_an_answer_that_has_begun_continues_with_the_new_weights(chat_model, changed):
    tensors, folder = changed
    params = SamplingParams(temperature=1, seed=5, max_tokens=400, ignore_eos=True, logprobs=0)
    with nibble.LLM(chat_model) as llm, nibble.LLM(folder) as other:
        whole = llm.generate(PROMPTS[0], params)[0].outputs[0].token_ids
        stream = llm.stream(PROMPTS[0], params)
        first = next(stream)
        llm.update_weights(values_of(chat_model))
        *_, last = stream
        assert last.outputs[0].token_ids == whole and len(first.outputs[0].token_ids) < 400
        stream = llm.stream(PROMPTS[0], params)
        next(stream)
        llm.update_weights(tensors)
        *_, last = stream
        prompt, mixed = last.prompt_token_ids, last.outputs[0].token_ids
        assert len(mixed) == 400 and mixed != whole
        # The log-probabilities at the end are those of the new weights alone on the whole text.
        scores = other.generate({"prompt_token_ids": prompt + mixed}, SamplingParams(max_tokens=1, prompt_logprobs=0))[0].prompt_logprobs
        for n in range(1, 20):
            assert last.outputs[0].logprobs[-n][mixed[-n]].logprob == scores[-n][mixed[-n]].logprob


def test_modes_of_a_pause(chat_model, changed):
    tensors, _ = changed
    params = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
    with nibble.LLM(chat_model) as llm:
        whole = llm.generate(PROMPTS[0], params)[0].outputs[0].token_ids
        stream = llm.stream(PROMPTS[0], params)
        next(stream)
        llm.update_weights(tensors, mode="wait")
        *_, last = stream
        assert last.outputs[0].token_ids == whole
        stream = llm.stream(PROMPTS[0], params)
        next(stream)
        llm.update_weights(tensors, mode="abort")
        *_, last = stream
        assert last.outputs[0].finish_reason in ("abort", "length")
        with pytest.raises(nibble.UsageError, match="choose abort, wait or keep"):
            llm.update_weights(tensors, mode="hurry")


def test_updates_while_other_threads_ask(chat_model, changed):
    tensors, folder = changed
    old = values_of(chat_model)
    with nibble.LLM(chat_model) as llm, nibble.LLM(folder) as other:
        expected = {tuple(llm.generate(PROMPTS[1], SamplingParams(temperature=0))[0].outputs[0].token_ids),
                    tuple(other.generate(PROMPTS[1], SamplingParams(temperature=0))[0].outputs[0].token_ids)}
        seen, done = [], threading.Event()

        def ask():
            while not done.is_set():
                seen.append(tuple(llm.generate(PROMPTS[1], SamplingParams(temperature=0))[0].outputs[0].token_ids))

        thread = threading.Thread(target=ask)
        thread.start()
        for _ in range(4):
            llm.update_weights(tensors, mode="wait")
            llm.update_weights(old, mode="wait")
        done.set()
        thread.join()
        assert seen and set(seen) <= expected


def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096


def test_sleep_frees_memory_and_wake_up_answers_the_same(chat_model, changed):
    tensors, folder = changed
    with nibble.LLM(chat_model, kv_memory="64MB") as llm, nibble.LLM(folder) as other:
        before = scores(llm)
        llm.generate([f"text {i} " + "word " * 100 for i in range(200)], SamplingParams(max_tokens=1))
        full = resident()
        llm.sleep(1)
        assert llm.is_sleeping() and full - resident() > 4 << 20
        with pytest.raises(nibble.UsageError, match="wake_up"):
            llm.generate("x")
        llm.wake_up()
        assert not llm.is_sleeping() and scores(llm) == before
        llm.sleep(level=2)
        with pytest.raises(nibble.UsageError, match="weights"):
            llm.wake_up(tags=["kv_cache"])
        llm.wake_up(tags=["weights"])
        llm.update_weights(tensors)
        assert llm.is_sleeping()
        llm.wake_up(tags=["kv_cache"])
        assert scores(llm) == scores(other)
        with pytest.raises(nibble.UsageError, match="level 3"):
            llm.sleep(3)
        assert llm.reset_prefix_cache()
        llm.generate(PROMPTS, PARAMS)
        assert llm.generate("a" * 400, SamplingParams(max_tokens=1))[0].num_cached_tokens == 0


def test_trl_gives_weights_one_by_one(chat_model, changed):
    tensors, folder = changed
    with nibble.vllm.LLM(chat_model, enable_sleep_mode=True) as llm, nibble.LLM(folder) as other:
        llm.sleep(level=2)
        llm.wake_up(tags=["weights"])
        inner = llm.llm_engine.model_executor.driver_worker.model_runner.model
        for name, tensor in tensors.items():
            inner.load_weights([(name, tensor)])
        llm.reset_prefix_cache()
        llm.wake_up(tags=["kv_cache"])
        assert scores(llm) == scores(other)
        assert llm.llm_engine.model_config.max_model_len > 0
