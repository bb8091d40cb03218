"""Model Optimizer's bytes (tests/data/modelopt) from nibble.quantize on arrays."""

import hashlib
import json

import ml_dtypes
import numpy as np
import pytest
from conftest import ROOT
from safetensors import safe_open

import nibble

CASES = {
    "NVFP4_DEFAULT_CFG": dict(format="nvfp4"),
    "W4A16_NVFP4_CFG": dict(format="nvfp4"),
    "NVFP4_FOUR_OVER_SIX_CFG": dict(format="nvfp4", four_over_six=True),
    "NVFP4_W4A4_WEIGHT_MSE_FP8_SWEEP_CFG": dict(format="nvfp4", search="sweep"),
    "MXFP4_DEFAULT_CFG": dict(format="mxfp4"),
    "MXFP8_DEFAULT_CFG": dict(format="mxfp8"),
    "FP8_PER_CHANNEL_PER_TOKEN_CFG": dict(format="fp8_row"),
    "FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG": dict(format="fp8_block128"),
}


def digest(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


@pytest.mark.parametrize("config", CASES)
def test_bytes_are_model_optimizers(config, tmp_path):
    import subprocess
    import sys

    golden = json.loads((ROOT / f"tests/data/modelopt/bf16--{config}.json").read_text())
    subprocess.run([sys.executable, ROOT / "tests/oracles/made_up_model.py", tmp_path, golden["model"] if isinstance(golden["model"], str)
                    else json.dumps(golden["model"])], check=True, capture_output=True)
    tensors = {t["name"]: t for t in golden["tensors"]}
    checkpoint = nibble.open(tmp_path)
    weights = [n.removesuffix(".weight_scale") for n in tensors if n.endswith(".weight_scale")]
    assert len(weights) == 7
    groups = {}
    for name in weights:
        shared = tensors.get(name + ".weight_scale_2", {}).get("sha256", name)
        x = checkpoint.tensor(name + ".weight")
        groups[shared] = max(groups.get(shared, 0.0), float(np.abs(x.astype(np.float32)).max()))
    differing = []
    for name in weights:
        shared = tensors.get(name + ".weight_scale_2", {}).get("sha256", name)
        options = dict(CASES[config], arithmetic="true")
        if options["format"] == "nvfp4":
            options["amax"] = groups[shared]
        q = nibble.quantize(checkpoint.tensor(name + ".weight"), **options)
        assert digest(q.codes) == tensors[name + ".weight"]["sha256"] or differing.append(name) is None
        scales = q.block_scales if q.block_scales is not None else q.float_scales
        if config != "FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG":  # stored there with other dimensions
            assert digest(scales) == tensors[name + ".weight_scale"]["sha256"] or name in differing
        if options["format"] == "nvfp4":
            assert digest(np.float32(q.tensor_scale)) == tensors[name + ".weight_scale_2"]["sha256"]
    assert len(differing) <= golden.get("search", {}).get("near_ties", 0), differing


def test_arrays_and_the_program_write_the_same_bytes(model, run_program, tmp_path):
    run_program("quantize", model, "-o", tmp_path / "out", "--recipe", "w4a16_nvfp4", "--quiet")
    source, out = nibble.open(model), nibble.open(tmp_path / "out")
    compared = 0
    with safe_open(tmp_path / "out" / "model.safetensors", "numpy") as file:
        for name, info in out.items():
            if not info.quantized:
                continue
            stored = file.get_tensor(name)
            read = out.quant(name)
            amax = read.tensor_scale
            x = source.tensor(name)
            groups = [n for n in out if out[n].quantized and out.quant(n).tensor_scale == amax]
            largest = max(float(np.abs(source.tensor(n).astype(np.float32)).max()) for n in groups)
            made = nibble.quantize(x, "nvfp4", amax=largest)
            assert np.array_equal(stored, read.codes) and np.array_equal(stored, made.codes)
            assert np.array_equal(made.block_scales, read.block_scales) and made.tensor_scale == read.tensor_scale
            compared += 1
    assert compared == 14


def test_a_checkpoint_is_a_mapping(model):
    c = nibble.open(model)
    name = "model.layers.0.mlp.up_proj.weight"
    assert name in c and len(c) == len(list(c)) and c[name].shape == (512, 256) and c.config["hidden_size"] == 256
    x = c.tensor(name)
    assert x.dtype == ml_dtypes.bfloat16 and x.shape == (512, 256)
    assert np.array_equal(c.get_slice(name)[3:7], x[3:7])
    assert c.tensor(name, rows=slice(500, None)).shape == (12, 256)
    with pytest.raises(KeyError):
        c["nothing"]
    with pytest.raises(nibble.NibbleError, match="no such file"):
        nibble.open(model / "nothing")
    assert nibble.open(model, framework=None).tensor("model.norm.weight").nbytes == 512
