"""Writes tests/data/modelopt: hashes of nvidia-modelopt's exports of the checkpoints of made_up_model.py.
tools/make-goldens installs the packages and runs this.

    make_modelopt_goldens.py OUT [--only TEXT]

One file per case: the model's configuration, versions, both JSON documents, and name, dtype, shape and SHA-256 of every
tensor (scalars also as numbers). Everything runs on a CPU, which is the `true` arithmetic of nibble. Model Optimizer's
fake quantization of static NVFP4 exists only for CUDA; fake_static() below has the same arithmetic for a CPU. Block
scales and codes always come from Model Optimizer.
"""
import argparse
import copy
import hashlib
import json
import pathlib
import tempfile

import modelopt
import modelopt.torch.quantization as mtq
import modelopt.torch.quantization.nn.modules.tensor_quantizer as tensor_quantizer
import torch
import transformers
from modelopt.torch.export import export_hf_checkpoint
from safetensors import safe_open

import made_up_model

BASE = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 160, "intermediate_size": 192, "num_hidden_layers": 1,
        "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "max_position_embeddings": 128, "rope_theta": 10000.0, "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2}
# q has two tiles, k and v one; gate and up one.
TILES = BASE | {"hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
# Every matrix has one tile.
ONE_TILE = TILES | {"head_dim": 32}
GEMMA3 = TILES | {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh",
                  "tie_word_embeddings": True, "query_pre_attn_scalar": 64, "sliding_window": 64, "num_hidden_layers": 1,
                  "layer_types": ["full_attention"]}
GEMMA3.pop("hidden_act")
ALL = ["NVFP4_DEFAULT_CFG", "NVFP4_FOUR_OVER_SIX_CFG", "NVFP4_W4A4_WEIGHT_MSE_FP8_SWEEP_CFG", "W4A16_NVFP4_CFG", "FP8_DEFAULT_CFG",
       "FP8_PER_CHANNEL_PER_TOKEN_CFG", "FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG", "MXFP4_DEFAULT_CFG", "MXFP8_DEFAULT_CFG"]
# name of the case -> configuration, dtype of the stored tensors (None: the declared one), presets
CASES = {
    "bf16": (BASE | {"torch_dtype": "bfloat16"}, None, ALL),
    "f16": (BASE | {"torch_dtype": "float16"}, None, ALL),
    "f32": (BASE | {"torch_dtype": "float32"}, None, ALL),
    # The declared dtype is used, not the stored one.
    "f32_declared_bf16": (BASE | {"dtype": "bfloat16"}, "float32", ["NVFP4_FOUR_OVER_SIX_CFG", "FP8_DEFAULT_CFG"]),
    "bf16_declared_f32": (BASE | {"dtype": "float32"}, "bfloat16", ["NVFP4_DEFAULT_CFG", "FP8_DEFAULT_CFG"]),
    "tiles": (TILES | {"torch_dtype": "bfloat16"}, None, ["FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG"]),
    "one_tile": (ONE_TILE | {"torch_dtype": "bfloat16"}, None, ["FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG"]),
    "gemma3": (GEMMA3 | {"torch_dtype": "bfloat16"}, None, ["NVFP4_DEFAULT_CFG"]),
}


def reciprocal_times(number, tensor):
    return torch.reciprocal(tensor) * number


def fake_static(x, amax, global_amax=None, quantize_block_scales=True, normalization=448.0, out_dtype=None, pass_through_bwd=False):
    """Quantizes blocks in rows, with one amax per block. Scales are rounded to E4M3 as in Model Optimizer's CUDA
    kernel.
    """
    assert quantize_block_scales and global_amax is not None
    shape, blocks = x.shape, amax.numel()
    w = x.float().reshape(blocks, -1)
    amax = amax.float().reshape(blocks, 1)
    whole = (global_amax.float() * (448.0 / normalization)) / 6.0
    up = reciprocal_times(448.0, whole)
    down = torch.reciprocal(up)
    scale = (amax / 6.0 * up).clamp(-448.0, 448.0).to(torch.float8_e4m3fn).float() * down
    q = w.abs() / torch.where(scale == 0, torch.ones_like(scale), scale)
    steps = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    code = ((q > 0.25).int() + (q >= 0.75) + (q > 1.25) + (q >= 1.75) + (q > 2.5) + (q >= 3.5) + (q > 5.0)).long()
    y = torch.where(scale == 0, torch.zeros_like(w), torch.copysign(steps[code] * scale, w))
    return y.reshape(shape).to(out_dtype or x.dtype)


def hashes(folder):
    found = []
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in sorted(file.keys()):
                tensor = file.get_tensor(name)
                data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
                entry = {"name": name, "dtype": file.get_slice(name).get_dtype(), "shape": list(tensor.shape), "sha256": hashlib.sha256(data).hexdigest()}
                if tensor.dtype == torch.float32 and tensor.numel() == 1:
                    entry["value"] = tensor.item()
                found.append(entry)
    return found


def run(name, config, stored, preset):
    with tempfile.TemporaryDirectory() as work:
        source, out = pathlib.Path(work) / "source", pathlib.Path(work) / "out"
        made_up_model.write_model(source, config, stored)
        model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype="auto").eval()
        ids = torch.arange(64).reshape(2, 32) % config["vocab_size"]
        quant_cfg = copy.deepcopy(getattr(mtq, preset))
        mtq.quantize(model, quant_cfg, lambda m: m(ids))
        with torch.inference_mode():
            export_hf_checkpoint(model, export_dir=out)
        quantization = json.loads((out / "config.json").read_text())["quantization_config"]
        return {"case": name, "preset": preset, "model": config, "stored": stored,
                "versions": {"nvidia-modelopt": modelopt.__version__, "torch": torch.__version__, "transformers": transformers.__version__},
                "quantization_config": quantization, "hf_quant_config": json.loads((out / "hf_quant_config.json").read_text()),
                "tensors": hashes(out)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    torch.set_num_threads(1)
    tensor_quantizer.static_blockwise_fp4_fake_quant = fake_static
    args.out.mkdir(parents=True, exist_ok=True)
    for name, (config, stored, presets) in CASES.items():
        for preset in presets:
            if args.only not in f"{name}--{preset}":
                continue
            golden = run(name, config, stored, preset)
            lines = [json.dumps(t) for t in golden.pop("tensors")]
            text = json.dumps(golden, indent=1)[:-2] + ',\n "tensors": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n"
            (args.out / f"{name}--{preset}.json").write_text(text)
            print(name, preset, len(lines))


if __name__ == "__main__":
    main()
