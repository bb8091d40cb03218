"""nibble.torch.export_quantized against Model Optimizer: the same model, configuration and inputs, the same bytes."""

import copy
import json
import pathlib
import subprocess
import sys

import pytest
import safetensors.torch
import torch
import transformers

import nibble
import nibble.torch

ROOT = pathlib.Path(__file__).resolve().parents[3]
mtq = pytest.importorskip("modelopt.torch.quantization")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("random") / "model"
    subprocess.run([sys.executable, ROOT / "tests/oracles/random_model.py", folder, "--hidden", "256", "--inner", "512",
                    "--layers", "2", "--vocab", "512"], check=True, capture_output=True)
    return folder


IDS = torch.randint(0, 512, (3, 32), generator=torch.Generator().manual_seed(4))


def forward_loop(model):
    for row in IDS:
        model(row[None])


def tensors(folder):
    out = {}
    for file in folder.glob("*.safetensors"):
        out |= safetensors.torch.load_file(file)
    return out


def mlp_only(config):
    """A configuration that a user changes, as Model Optimizer's documentation shows."""
    config = copy.deepcopy(config)
    config["quant_cfg"].append({"quantizer_name": "*self_attn*", "enable": False})
    return config


@pytest.mark.parametrize("name,change", [("NVFP4_DEFAULT_CFG", None), ("FP8_DEFAULT_CFG", None), ("W4A16_NVFP4_CFG", None),
                                         ("NVFP4_DEFAULT_CFG", mlp_only)])
def test_the_bytes_of_model_optimizer(source, tmp_path, name, change):
    from modelopt.torch.export import export_hf_checkpoint

    config = getattr(mtq, name)
    config = change(config) if change else config
    load = lambda: transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)  # noqa: E731
    theirs = mtq.quantize(load(), copy.deepcopy(config), forward_loop)
    export_hf_checkpoint(theirs, export_dir=tmp_path / "theirs")
    model = load()
    before = {n: p.clone() for n, p in model.named_parameters()}
    report = nibble.torch.export_quantized(model, config, tmp_path / "ours", forward_loop)
    assert report.quantized_tensors == (6 if change else 14)
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    a, b = tensors(tmp_path / "ours"), tensors(tmp_path / "theirs")
    assert set(a) == set(b)
    for key in b:
        assert a[key].dtype == b[key].dtype and a[key].shape == b[key].shape, key
        assert torch.equal(a[key].contiguous().reshape(-1).view(torch.uint8), b[key].contiguous().reshape(-1).view(torch.uint8)), key
    ours, theirs = (json.loads((tmp_path / d / "hf_quant_config.json").read_text())["quantization"] for d in ("ours", "theirs"))
    assert ours["quant_algo"] == theirs["quant_algo"]


def test_what_is_missing_is_named(source, tmp_path):
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    with pytest.raises(nibble.NibbleError, match="needs activations: input_scale"):
        nibble.torch.export_quantized(model, mtq.FP8_DEFAULT_CFG, tmp_path / "out")
    with pytest.raises(nibble.RecipeError):
        nibble.torch.export_quantized(model, {"quant_cfg": [{"quantizer_name": "*weight_quantizer", "cfg": {"num_bits": 3}}]}, tmp_path / "out")
