"""transformers loads quantized checkpoints with nibble's kernels (nibble.transformers)."""

import pathlib
import shutil
import subprocess
import sys

import pytest
import safetensors.torch
import torch
import transformers

import nibble
import nibble.transformers
from nibble.torch import CheckpointLinear

ROOT = pathlib.Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A Llama with sizes that suit every format."""
    folder = tmp_path_factory.mktemp("random") / "model"
    subprocess.run([sys.executable, ROOT / "tests/oracles/random_model.py", folder, "--hidden", "256", "--inner", "512",
                    "--layers", "2", "--vocab", "512"], check=True, capture_output=True)
    return folder


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)


def decoded(folder, source, out):
    """The checkpoint as plain BF16 tensors."""
    shutil.copytree(source, out)
    checkpoint = nibble.open(folder, framework="torch")
    values = {name: checkpoint.tensor(name, dtype="bfloat16").contiguous() for name in checkpoint}
    for file in out.glob("*.safetensors*"):
        file.unlink()
    safetensors.torch.save_file(values, out / "model.safetensors", metadata={"format": "pt"})
    return out


def same_bytes(a, b):
    return torch.equal(a.contiguous().reshape(-1).view(torch.uint8), b.contiguous().reshape(-1).view(torch.uint8))


IDS = torch.randint(0, 512, (2, 24), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("recipe", ["w4a16_nvfp4", "nvfp4_four_over_six", "fp8_2d_blockwise_weight_only"])
def test_weight_only_formats(source, tmp_path, recipe):
    folder = tmp_path / "quantized"
    nibble.quantize_checkpoint(source, folder, recipe, weights_only=True)
    model, plain = load(folder), load(decoded(folder, source, tmp_path / "decoded"))
    layers = [m for m in model.modules() if isinstance(m, CheckpointLinear)]
    assert len(layers) == 14
    with torch.no_grad():
        got, expected = model(IDS).logits.float(), plain(IDS).logits.float()
    # The products differ in the order of sums alone; each layer rounds to BF16.
    assert (got - expected).norm() / expected.norm() < 0.02
    tokens = model.to(torch.bfloat16).generate(IDS[:1], max_new_tokens=4, do_sample=False)
    assert tokens.shape == (1, 28)
    model.save_pretrained(tmp_path / "saved")
    again, first = (safetensors.torch.load_file(d / "model.safetensors") for d in (tmp_path / "saved", folder))
    shared = {n for n in first if n != "lm_head.weight"}
    assert shared <= set(again)
    for name in shared:
        assert again[name].dtype == first[name].dtype and same_bytes(again[name], first[name]), name
    assert nibble.verify(tmp_path / "saved")


@pytest.mark.parametrize("recipe", ["nvfp4", "fp8", "fp8_per_channel_per_token"])
def test_quantized_inputs_as_the_engine_quantizes_them(source, tmp_path, recipe):
    folder = tmp_path / "quantized"
    scales = {} if recipe == "fp8_per_channel_per_token" else dict(input_scales={"nvfp4": "0.0015", "fp8": "0.01"}[recipe])
    nibble.quantize_checkpoint(source, folder, recipe, **scales)
    model = load(folder)
    layer = model.model.layers[0].mlp.up_proj
    assert layer.inputs == {"nvfp4": "nvfp4", "fp8": "fp8", "fp8_per_channel_per_token": "fp8_token"}[recipe]
    x = torch.randn(5, 256, generator=torch.Generator().manual_seed(2)).to(torch.bfloat16)
    scale = None if layer.input_scale is None else float(layer.input_scale)
    form = {"nvfp4": "nvfp4", "fp8": "fp8", "fp8_token": "fp8_row"}[layer.inputs]
    amax = None if scale is None else scale * (2688 if form == "nvfp4" else 448)
    expected = nibble.quantize(x, form, amax=amax).dequantize() @ layer.quantized().dequantize().T
    got = layer(x).float()
    assert (got - expected).norm() / expected.norm() < 0.004, "beyond the rounding to BF16"
    with torch.no_grad():
        weights_only = nibble.matmul(x, layer.quantized()).float()
    assert (weights_only - expected).norm() / expected.norm() > 0.01, "inputs are not quantized"


def test_compiled_and_with_gradient(source, tmp_path):
    nibble.quantize_checkpoint(source, tmp_path / "q", "w4a16_nvfp4")
    model = load(tmp_path / "q")
    with torch.no_grad():
        plain = model(IDS).logits
        compiled = torch.compile(model.forward, fullgraph=True, backend="aot_eager")(IDS).logits
    assert torch.equal(plain, compiled)
    x = model.get_input_embeddings()(IDS).detach().requires_grad_()
    model(inputs_embeds=x).logits.float().sum().backward()
    assert x.grad is not None and torch.isfinite(x.grad).all() and x.grad.abs().sum() > 0


def test_what_cannot_be_loaded_is_named(source, tmp_path):
    nibble.quantize_checkpoint(source, tmp_path / "q", "w4a16_nvfp4")
    with pytest.raises(nibble.NibbleError, match="on the CPU only"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "q", device_map={"": "cuda:0"})
