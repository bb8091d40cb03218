"""Checks exports of every family of recipes, in both dialects, with the rules of loader_rules.py, and that these rules
find faults.

    loader_rules_test.py NIBBLE
"""
import json
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

import loader_rules
import made_up_model

CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "hidden_size": 256, "intermediate_size": 384,
          "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 64, "rms_norm_eps": 1e-5,
          "hidden_act": "silu", "max_position_embeddings": 128, "rope_theta": 10000.0, "tie_word_embeddings": False}
MIXED = """metadata:
  recipe_type: ptq
quantize:
  algorithm: max
  quant_cfg:
    - {quantizer_name: '*', enable: false}
    - {quantizer_name: '*self_attn*weight_quantizer', cfg: {num_bits: e4m3, axis: null}}
    - {quantizer_name: '*self_attn*input_quantizer', cfg: {num_bits: e4m3, axis: null}}
    - {quantizer_name: '*mlp*weight_quantizer', cfg: {num_bits: e2m1, block_sizes: {-1: 16, type: dynamic, scale_bits: e4m3}}}
    - {quantizer_name: '*lm_head*', enable: false}
"""
# recipe -> number of notes that loaders do not know it in Model Optimizer's dialect; None: compressed-tensors has no
# such scheme
RECIPES = {"nvfp4": 0, "w4a16_nvfp4": 0, "nvfp4_four_over_six": 0, "nvfp4_w4a4_weight_mse_fp8_sweep": 0, "nvfp4_mlp_only": 0, "fp8": 0,
           "fp8_per_channel_per_token": 0, "fp8_2d_blockwise_weight_only": 0, "mxfp8": 0, "mxfp4": 1, "mxfp4_mlp_weight_only": 1, "mixed.yaml": 0}


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stderr}"


def edit_header(folder, change):
    path = folder / "model.safetensors"
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    body = bytearray(data[8 + length :])
    change(header, body)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(body))


def drop(name):
    return lambda header, body: header.pop(name)


def retype(name):
    return lambda header, body: header[name].update(dtype="I8")


def reshape(name):
    return lambda header, body: header[name].update(shape=header[name]["shape"][::-1])


def scale_by_two(name):
    def change(header, body):
        begin = header[name]["data_offsets"][0]
        body[begin : begin + 4] = struct.pack("<f", 2 * struct.unpack("<f", body[begin : begin + 4])[0])

    return change


def edit_json(folder, name, change):
    document = json.loads((folder / name).read_text())
    change(document)
    (folder / name).write_text(json.dumps(document))


def main():
    nibble, failures = pathlib.Path(sys.argv[1]).resolve(), []
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        source = work / "source"
        made_up_model.write_model(source, CONFIG)
        (work / "mixed.yaml").write_text(MIXED)
        inputs = {f"{name.removesuffix('.weight')}.input_scale": 0.01 for name, shape in made_up_model.shapes(CONFIG) if "_proj" in name}
        (work / "scales.json").write_text(json.dumps(inputs))
        for recipe, notes_expected in RECIPES.items():
            for dialect in ("modelopt", "compressed-tensors"):
                out = work / f"{recipe}-{dialect}"
                run(nibble, "quantize", source, "-o", out, "--recipe", work / recipe if recipe.endswith("yaml") else recipe, "--format", dialect,
                    "--input-scales", work / "scales.json", "--quiet", "--threads", "2")
                problems, notes = loader_rules.check(out, source)
                failures += [f"{out.name}: {p}" for p in problems]
                if bool(notes) != (notes_expected and dialect == "modelopt"):
                    failures.append(f"{out.name}: notes {notes}")
        k = "model.layers.0.self_attn.k_proj"
        faults = [
            ("nvfp4-modelopt", "header", drop(f"{k}.weight_scale_2")), ("nvfp4-modelopt", "header", drop(f"{k}.input_scale")),
            ("nvfp4-modelopt", "header", retype(f"{k}.weight_scale")), ("nvfp4-modelopt", "header", reshape("model.layers.0.self_attn.q_proj.weight")),
            ("nvfp4-modelopt", "header", scale_by_two(f"{k}.weight_scale_2")), ("nvfp4-modelopt", "header", drop("model.norm.weight")),
            ("nvfp4-modelopt", "config.json", lambda j: j["quantization_config"]["ignore"].clear()),
            ("nvfp4-modelopt", "hf_quant_config.json", lambda j: j["quantization"].pop("group_size")),
            ("nvfp4-modelopt", "hf_quant_config.json", lambda j: j["quantization"].update(quant_algo="FP8")),
            ("fp8-modelopt", "header", drop(f"{k}.weight_scale")),
            ("mixed.yaml-modelopt", "config.json", lambda j: j["quantization_config"]["quantized_layers"].pop(k)),
            ("nvfp4-compressed-tensors", "header", drop(f"{k}.weight_global_scale")),
            ("nvfp4-compressed-tensors", "header", scale_by_two(f"{k}.input_global_scale")),
            ("nvfp4-compressed-tensors", "config.json", lambda j: j["quantization_config"]["ignore"].clear()),
            ("nvfp4-compressed-tensors", "config.json", lambda j: j["quantization_config"]["config_groups"]["group_0"]["weights"].update(unknown_key=None)),
            ("fp8_2d_blockwise_weight_only-compressed-tensors", "header", reshape("model.layers.0.mlp.up_proj.weight_scale")),
            ("mxfp4-compressed-tensors", "header", retype(f"{k}.weight_scale")),
        ]
        for i, (name, where, change) in enumerate(faults):
            copy = work / "copy"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(work / name, copy)
            if where == "header":
                edit_header(copy, change)
            else:
                edit_json(copy, where, change)
            if not loader_rules.check(copy, source)[0]:
                failures.append(f"fault {i} in {name}, {where}: not found")
    for failure in failures:
        print(failure)
    print(f"{2 * len(RECIPES)} exports and {len(faults)} faults, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
