"""Compares quantized checkpoints that transformers and compressed-tensors write or decode with `nibble convert
--format bf16`, and INT4 of `nibble quantize` with compressed-tensors: equal bits.

    test_sources.py NIBBLE     exit status 77: a package is missing
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import types

try:
    import torch
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams
    from safetensors.torch import load_file, save_file
    from transformers import FineGrainedFP8Config
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    from transformers.utils.quantization_config import Mxfp4Config
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

nibble = str(pathlib.Path(sys.argv[1]).resolve())
torch.manual_seed(7)
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "tie_word_embeddings": False, "torch_dtype": "bfloat16"}
MODULE = "model.layers.0.mlp.up_proj"


def decoded(folder, section, tensors):
    source = folder / "in"
    source.mkdir(parents=True)
    (source / "config.json").write_text(json.dumps(dict(CONFIG, quantization_config=section)))
    save_file({"lm_head.weight": torch.zeros(4, 4, dtype=torch.bfloat16)} | {k: v.contiguous() for k, v in tensors.items()}, source / "model.safetensors")
    for command in (["inspect", source, "--summary"], ["verify", source, "--partial", "--quiet"], ["convert", source, "-o", folder / "out", "--format", "bf16", "--partial", "--quiet"]):
        done = subprocess.run([nibble, *map(str, command)], capture_output=True, text=True)
        assert done.returncode == 0, (section, command[0], done.stderr)
    return load_file(folder / "out" / "model.safetensors")


def equal(name, ours, theirs):
    assert ours.dtype == theirs.dtype == torch.bfloat16 and ours.shape == theirs.shape, (name, ours.dtype, ours.shape, theirs.dtype, theirs.shape)
    assert torch.equal(ours.view(torch.int16), theirs.contiguous().view(torch.int16)), name


def codes(rows, cols):
    return (torch.randn(rows, cols) * 40).clamp(-448, 448).to(torch.float8_e4m3fn)


def transformers_fp8(work):
    """Uses transformers' dequantizer, with every key that its configuration writes."""
    rows, cols = 256, 384  # it needs whole tiles
    grids = {"tile": (2, 3), "tensor": ()}
    count = 0
    for grid, shape in grids.items():
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float8_e8m0fnu):
            scale = (torch.rand(shape) * 0.01 + 0.001).to(dtype)
            config = FineGrainedFP8Config(weight_block_size=(128, 128) if grid == "tile" else None, scale_fmt="ue8m0" if dtype == torch.float8_e8m0fnu else "float")
            weight = codes(rows, cols)
            theirs = Fp8Dequantize(types.SimpleNamespace(quantization_config=config))._dequantize_one(weight, scale, output_dtype=torch.bfloat16)
            ours = decoded(work / f"fp8-{count}", json.loads(json.dumps(config.to_dict(), default=str)), {MODULE + ".weight": weight, MODULE + ".weight_scale_inv": scale})
            equal(f"transformers FP8, {grid}, {dtype}", ours[MODULE + ".weight"], theirs)
            count += 1
    # FP4 experts and MXFP8 of the same method.
    packed = torch.randint(-128, 128, (64, 128), dtype=torch.int8)
    exponents = torch.randint(118, 124, (64, 8), dtype=torch.uint8).view(torch.float8_e8m0fnu)
    config = FineGrainedFP8Config(scale_fmt="ue8m0", expert_dtype="fp4")
    dequantize = Fp8Dequantize(types.SimpleNamespace(quantization_config=config))
    expert = "model.layers.0.mlp.experts.0.up_proj"
    section = json.loads(json.dumps(config.to_dict(), default=str))
    ours = decoded(work / "fp4", section, {expert + ".weight": packed, expert + ".scale": exponents})
    equal("transformers FP4", ours[expert + ".weight"], dequantize._dequantize_one(packed, exponents, output_dtype=torch.bfloat16))
    weight = codes(64, 256)
    config = FineGrainedFP8Config(weight_block_size=(1, 32), scale_fmt="ue8m0")
    section = json.loads(json.dumps(config.to_dict(), default=str))
    ours = decoded(work / "mx8", section, {MODULE + ".weight": weight, MODULE + ".weight_scale_inv": exponents.view(torch.uint8)})
    equal("transformers MXFP8", ours[MODULE + ".weight"], dequantize._dequantize_one(weight, exponents.view(torch.uint8), output_dtype=torch.bfloat16))
    return count + 2


def transformers_mxfp4(work):
    blocks, scales = torch.randint(0, 256, (3, 64, 2, 16), dtype=torch.uint8), torch.randint(118, 124, (3, 64, 2), dtype=torch.uint8)
    stack = "model.layers.0.mlp.experts.gate_up_proj"
    ours = decoded(work / "mxfp4", json.loads(json.dumps(Mxfp4Config(modules_to_not_convert=["lm_head"]).to_dict(), default=str)), {stack + "_blocks": blocks, stack + "_scales": scales})
    equal("MXFP4 of GPT-OSS", ours[stack], convert_moe_packed_tensors(blocks, scales))
    return 1


def compressed_tensors(work):
    """Uses weights that compressed-tensors packs and unpacks."""
    rows, cols = 64, 256
    count = 0
    schemes = {
        "pack-quantized": [dict(num_bits=4, type="int", strategy="group", group_size=32), dict(num_bits=4, type="int", strategy="channel"), dict(num_bits=8, type="int", strategy="group", group_size=128)],
        "int-quantized": [dict(num_bits=8, type="int", strategy="channel")],
        "float-quantized": [dict(num_bits=8, type="float", strategy="tensor"), dict(num_bits=8, type="float", strategy="channel"), dict(num_bits=8, type="float", strategy="block", block_structure=[128, 128])],
        "naive-quantized": [dict(num_bits=8, type="float", strategy="channel")],
    }
    for form, args in schemes.items():
        for arg in args:
            scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**arg), format=form)
            groups = {"tensor": (1,), "channel": (rows, 1), "group": (rows, cols // arg.get("group_size", cols)), "block": (1, 2)}[arg["strategy"]]
            state = {"weight": (torch.randn(rows, cols) * 0.05).to(torch.bfloat16), "weight_scale": (torch.rand(groups) * 1e-3 + 5e-3).to(torch.bfloat16)}
            compressor = BaseCompressor.get_value_from_registry(form)
            packed = compressor.compress(dict(state), scheme)
            theirs = compressor.decompress(dict(packed), scheme)["weight"].to(torch.bfloat16)
            section = {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed", "ignore": ["lm_head"],
                       "config_groups": {"group_0": json.loads(scheme.model_dump_json())}}
            ours = decoded(work / f"ct-{count}", section, {f"{MODULE}.{k}": v for k, v in packed.items()})
            equal(f"compressed-tensors {form} {arg}", ours[MODULE + ".weight"], theirs)
            count += 1
    return count


def int4_target(work):
    """Compares what `nibble quantize` writes in INT4 with compressed-tensors: scales of calculate_qparams, packed codes."""
    args = QuantizationArgs(num_bits=4, type="int", strategy="group", group_size=128)
    scheme = QuantizationScheme(targets=["Linear"], weights=args, format="pack-quantized")
    weight = (torch.randn(96, 384) * 0.05).to(torch.bfloat16)
    weight[0] = 0
    weight[1, :128] = torch.arange(-64, 64).to(torch.bfloat16) / 64
    weight[2] = 1e-41
    (work / "bf16").mkdir()
    (work / "bf16/config.json").write_text(json.dumps(CONFIG))
    save_file({"lm_head.weight": torch.zeros(4, 4, dtype=torch.bfloat16), MODULE + ".weight": weight}, work / "bf16/model.safetensors")
    for name in ("w4a16_int4", "w4a16_int4 --arithmetic true"):
        out = work / name.replace(" ", "_")
        command = ["quantize", work / "bf16", "-o", out, "--recipe", *name.split(), "--format", "compressed-tensors", "--partial", "--quiet"]
        done = subprocess.run([nibble, *map(str, command)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        ours = load_file(out / "model.safetensors")
        groups = weight.unflatten(-1, (-1, 128))
        scale, _ = calculate_qparams(groups.amin(-1), groups.amax(-1), args)
        theirs = BaseCompressor.get_value_from_registry("pack-quantized").compress({"weight": weight, "weight_scale": scale}, scheme)
        for part, tensor in theirs.items():
            mine = ours[f"{MODULE}.{part}"]
            assert mine.dtype == tensor.dtype and mine.shape == tensor.shape and torch.equal(mine, tensor), (name, part)
        section = json.loads((out / "config.json").read_text())["quantization_config"]
        read = QuantizationConfig.model_validate(section).config_groups["group_0"]
        assert (read.weights.num_bits, read.weights.group_size, str(read.weights.type), read.format) == (4, 128, str(args.type), "pack-quantized"), read
    return 2


with tempfile.TemporaryDirectory() as work:
    work = pathlib.Path(work)
    print(f"{transformers_fp8(work) + transformers_mxfp4(work) + compressed_tensors(work)} sources decode to the peers' bits, {int4_target(work)} outputs have them")
