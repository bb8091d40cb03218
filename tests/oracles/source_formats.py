"""Writes quantized checkpoints in the spellings of other programs and decodes them with numpy and ml_dtypes. `nibble`
must open each with every command and give code times scale, rounded once to BF16.

    source_formats.py NIBBLE     exit status 77: a package is missing
"""

import itertools
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import own_packages

own_packages.need("gguf", "ml_dtypes", "numpy", "safetensors")
import gguf
import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

nibble = str(pathlib.Path(sys.argv[1]).resolve())
rng = np.random.default_rng(7)
BF16, E4M3, E8M0 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu
DTYPES = {"BF16": BF16, "F8_E4M3": E4M3, "U8": np.uint8, "F32": np.float32}
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
HIDDEN, INNER, KV, VOCAB = 192, 320, 96, 64
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": 1,
          "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 48, "vocab_size": VOCAB, "max_position_embeddings": 128, "rms_norm_eps": 1e-6,
          "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False, "rope_theta": 10000.0, "torch_dtype": "bfloat16"}
SHAPES = {"self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (KV, HIDDEN), "self_attn.v_proj": (KV, HIDDEN), "self_attn.o_proj": (HIDDEN, HIDDEN),
          "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN), "mlp.down_proj": (HIDDEN, INNER)}
MATRICES = {f"model.layers.0.{name}": shape for name, shape in SHAPES.items()}


def run(*command, fails=False):
    done = subprocess.run([nibble, *map(str, command)], capture_output=True, text=True)
    assert (done.returncode != 0) == fails, f"{' '.join(map(str, command))}: status {done.returncode}: {done.stderr[-2000:]}"
    return done


def plain_tensors():
    tensors = {name: (rng.standard_normal(shape) * 0.05).astype(BF16) for name, shape in (("model.embed_tokens.weight", (VOCAB, HIDDEN)), ("lm_head.weight", (VOCAB, HIDDEN)))}
    for name in ("model.norm", "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm"):
        tensors[name + ".weight"] = np.ones(HIDDEN, BF16)
    return tensors


def write(folder, section, tensors, config=CONFIG):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config if section is None else dict(config, quantization_config=section)))
    safetensors.numpy.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def read(folder):
    tensors = {}
    for path in folder.glob("*.safetensors"):
        for name, t in safetensors.deserialize(path.read_bytes()):
            tensors[name] = np.frombuffer(bytes(t["data"]), DTYPES[t["dtype"]]).reshape(t["shape"])
    return tensors


def same_bits(a, b):
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def e4m3_codes(shape):
    codes = rng.integers(0x20, 0x7F, shape, dtype=np.uint8) | rng.choice(np.array([0, 0x80], np.uint8), shape)
    return codes.view(E4M3)


def scales(shape, dtype):
    if dtype == E8M0:
        return rng.integers(112, 120, shape, dtype=np.uint8).view(E8M0)
    return rng.uniform(1e-4, 4e-4, shape).astype(np.float32).astype(dtype)


def widen(scale, shape):
    """Expands a grid of scales to a matrix: one scale, one per row, or one per tile of 128 x 128."""
    scale = np.asarray(scale).astype(np.float32)
    if scale.size == 1:
        return np.broadcast_to(scale.reshape(1, 1), shape)
    scale = scale.reshape(scale.shape[0], -1)
    if scale.shape == (shape[0], 1):
        return np.broadcast_to(scale, shape)
    return np.repeat(np.repeat(scale, 128, 0), 128, 1)[: shape[0], : shape[1]]


def decoded(codes, scale):
    return (codes.astype(np.float32) * widen(scale, codes.shape)).astype(BF16)


GRANULARITIES = {"tensor": lambda s: (), "tensor [1]": lambda s: (1,), "channel": lambda s: (s[0], 1), "tile": lambda s: tuple(-(-d // 128) for d in s)}
CT_ARGS = {"num_bits": 8, "type": "float", "symmetric": True}


def ct_section(granularity, static, status, form):
    weights = dict(CT_ARGS, strategy={"tensor [1]": "tensor"}.get(granularity, granularity))
    if granularity == "tile":
        weights |= {"strategy": "block", "block_structure": [128, 128]}
    inputs = dict(CT_ARGS, strategy="tensor", dynamic=False) if static else dict(CT_ARGS, strategy="token", dynamic=True)
    if granularity == "tile":
        inputs = dict(CT_ARGS, strategy="group", group_size=128, dynamic=True)
    return {"quant_method": "compressed-tensors", "format": form, "quantization_status": status, "ignore": ["lm_head"], "kv_cache_scheme": None,
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None}}}


def fp8_rows():
    """Yields (format, section, granularity, scale dtype, name of the scales, name of the input scale or None)."""
    for granularity, dtype, static in itertools.product(GRANULARITIES, (np.float32, BF16, np.float16, E8M0), (False, True)):
        tile = granularity == "tile"
        yield ("transformers", {"quant_method": "fp8", "activation_scheme": "static" if static else "dynamic", "weight_block_size": [128, 128] if tile else None,
                                "modules_to_not_convert": ["lm_head"], "modules_to_convert": None, "dequantize": False, "expert_dtype": "fp8",
                                "scale_fmt": "ue8m0" if dtype == E8M0 else "float"}, granularity, dtype, "weight_scale_inv", "activation_scale" if static else None)
        yield ("vLLM", {"quant_method": "fp8", "activation_scheme": "static" if static else "dynamic", "ignored_layers": ["lm_head"]} | ({"weight_block_size": [128, 128]} if tile else {}),
               granularity, dtype, "weight_scale", "input_scale" if static else None)
        if dtype != E8M0 and not (tile and static):
            for status, form in (("frozen", "naive-quantized"), ("compressed", "float-quantized"), ("initialized", "float-quantized"), ("calibration", "naive-quantized")):
                yield ("compressed-tensors " + status, ct_section(granularity, static, status, form), granularity, dtype, "weight_scale", "input_scale" if static else None)
    for dtype in (np.float32, BF16, E8M0):
        yield ("DeepSeek", {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"}, "tile", dtype, "weight_scale_inv", None)
    for method in ("modelopt", "modelopt_fp4"):
        yield ("Model Optimizer", {"quant_method": method, "quant_algo": "FP8", "ignore": ["lm_head"]}, "tensor", np.float32, "weight_scale", "input_scale")


def check_fp8(work):
    count = 0
    base = plain_tensors()
    for what, section, granularity, dtype, name, input_name in fp8_rows():
        count += 1
        folder = work / f"fp8-{count}"
        tensors, want = dict(base), dict(base)
        for module, shape in MATRICES.items():
            codes, scale = e4m3_codes(shape), scales(GRANULARITIES[granularity](shape), dtype)
            tensors[module + ".weight"], tensors[f"{module}.{name}"] = codes, scale
            if input_name:
                tensors[f"{module}.{input_name}"] = np.array(0.02, np.float32).reshape(() if granularity == "tensor" else (1,))
            want[module + ".weight"] = decoded(codes, scale)
        write(folder / "in", section, tensors)
        run("convert", folder / "in", "-o", folder / "out", "--format", "bf16", "--quiet")
        got = read(folder / "out")
        assert got.keys() == want.keys(), (what, got.keys() ^ want.keys())
        for key, value in want.items():
            assert same_bits(got[key], value), (what, granularity, dtype, name, key)
        check_commands(folder, want, static=input_name is not None, kind=granularity)
        shutil.rmtree(folder)
    return count


def check_commands(folder, want, static, kind):
    source = folder / "in"
    run("inspect", source, "--summary")
    verified = run("verify", source, "--quiet")
    assert "warning" not in verified.stderr, verified.stderr
    ids = folder / "ids.safetensors"
    safetensors.numpy.save_file({"input_ids": rng.integers(3, VOCAB, (2, 16)).astype(np.int64)}, ids)
    for flags in ([], ["--weights-only"]):
        run("logits", source, "--ids", ids, "-o", folder / f"logits{len(flags)}.safetensors", "--quiet", *flags)
    run("logits", folder / "out", "--ids", ids, "-o", folder / "plain.safetensors", "--quiet")
    a, b = (safetensors.numpy.load_file(folder / f)["logits"].astype(np.float32) for f in ("logits1.safetensors", "plain.safetensors"))
    assert np.abs(a - b).max() <= 0.02 * np.abs(b).max(), (kind, np.abs(a - b).max(), np.abs(b).max())
    run("quantize", source, "-o", folder / "q", "--recipe", "w4a16_nvfp4", "--requantize", "--quiet")
    run("quantize", folder / "out", "-o", folder / "q2", "--recipe", "w4a16_nvfp4", "--quiet")
    one, two = read(folder / "q"), read(folder / "q2")
    assert one.keys() == two.keys() and all(same_bits(one[k], two[k]) for k in one), "quantized from the source and from its decoded form"
    # FP8 to GGUF is one command: matrices become BF16, and no option is needed.
    run("convert", source, "-o", folder / "model.gguf", "--quiet")
    types = {t.name: t.tensor_type for t in gguf.GGUFReader(folder / "model.gguf").tensors}
    assert types["blk.0.ffn_down.weight"] == gguf.GGMLQuantizationType.BF16, types
    found = next(t for t in gguf.GGUFReader(folder / "model.gguf").tensors if t.name == "blk.0.ffn_down.weight")
    assert np.array_equal(gguf.quants.dequantize(found.data, found.tensor_type), want["model.layers.0.mlp.down_proj.weight"].astype(np.float32))
    if static and kind in ("tensor", "tensor [1]"):  # static input scales are kept if the target can store them
        for dialect in ("modelopt", "compressed-tensors"):
            run("convert", source, "-o", folder / dialect, "--format", dialect, "--quiet")
            scale = read(folder / dialect)["model.layers.0.mlp.down_proj.input_scale"]
            assert np.float32(scale.reshape(-1)[0]) == np.float32(0.02), dialect


def pack_int4(codes):
    words = np.zeros((codes.shape[0], codes.shape[1] // 8), np.uint32)
    for i in range(8):
        words |= (codes[:, i::8].astype(np.uint32) + 8 & 15) << np.uint32(4 * i)
    return words.view(np.int32)


def check_integers(work):
    """Tests pack-quantized INT4 in groups of 32, as in Kimi-K2's experts."""
    base = plain_tensors()
    tensors, want = dict(base), dict(base)
    for module, shape in MATRICES.items():
        codes = rng.integers(-8, 8, shape, dtype=np.int8)
        scale = scales((shape[0], shape[1] // 32), BF16)
        tensors[module + ".weight_packed"], tensors[module + ".weight_scale"] = pack_int4(codes), scale
        tensors[module + ".weight_shape"] = np.array(shape, np.int32)
        want[module + ".weight"] = (codes.astype(np.float32) * np.repeat(scale.astype(np.float32), 32, 1)).astype(BF16)
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True, "actorder": None, "block_structure": None,
               "dynamic": False, "observer": "minmax", "observer_kwargs": {}}
    section = {"quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed", "ignore": ["lm_head"],
               "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}}}
    folder = work / "int4"
    write(folder / "in", section, tensors)
    run("inspect", folder / "in", "--summary")
    run("verify", folder / "in", "--quiet")
    run("convert", folder / "in", "-o", folder / "out", "--format", "bf16", "--quiet")
    got = read(folder / "out")
    assert got.keys() == want.keys() and all(same_bits(got[k], want[k]) for k in want)
    run("quantize", folder / "in", "-o", folder / "q", "--recipe", "w4a16_nvfp4", "--quiet")
    run("quantize", folder / "out", "-o", folder / "q2", "--recipe", "w4a16_nvfp4", "--quiet")
    one, two = read(folder / "q"), read(folder / "q2")
    assert one.keys() == two.keys() and all(same_bits(one[k], two[k]) for k in one)


def check_stacks(work):
    """Tests experts in one tensor per projection: GPT-OSS in MXFP4, Model Optimizer's NVFP4 and FP8."""
    e, hidden, inner = 3, 64, 32
    config = {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": 1,
              "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_local_experts": e, "num_experts_per_tok": 1, "vocab_size": 64,
              "torch_dtype": "bfloat16", "tie_word_embeddings": False, "layer_types": ["sliding_attention"], "sliding_window": 16}
    llama4 = dict(config, architectures=["Llama4ForCausalLM"], model_type="llama4_text")
    for kind, model in (("mxfp4", config), ("nvfp4", config), ("fp8", config), ("nvfp4", llama4), ("fp8", llama4)):
        tensors, want = {"lm_head.weight": np.ones((64, hidden), BF16)}, {}
        for name, fan_in, fan_out in (("gate_up_proj", hidden, 2 * inner), ("down_proj", inner, hidden)):
            stack = "model.layers.0.mlp.experts." + name
            if model is config:
                tensors[stack + "_bias"] = np.zeros((e, fan_out), BF16)
            codes = rng.integers(0, 16, (e, fan_out, fan_in), dtype=np.uint8)  # [E, out, in]
            pairs = codes[:, :, 0::2] | codes[:, :, 1::2] << 4
            if kind == "mxfp4":
                scale = rng.integers(118, 124, (e, fan_out, fan_in // 32), dtype=np.uint8)
                tensors[stack + "_blocks"], tensors[stack + "_scales"] = pairs.reshape(e, fan_out, fan_in // 32, 16), scale
                value = E2M1[codes] * np.repeat(scale.view(E8M0).astype(np.float32), 32, 2)
            elif kind == "nvfp4":
                scale, factor = rng.integers(0x28, 0x60, (e, fan_out, fan_in // 16), dtype=np.uint8).view(E4M3), np.float32(0.003)
                tensors[stack], tensors[stack + "_weight_scale"] = np.ascontiguousarray(pairs.swapaxes(1, 2)), np.ascontiguousarray(scale.swapaxes(1, 2))
                tensors[stack + "_weight_scale_2"], tensors[stack + "_input_scale"] = np.array(factor), np.array(0.01, np.float32)
                value = E2M1[codes] * np.repeat(scale.astype(np.float32) * factor, 16, 2)
            else:
                eight, factor = e4m3_codes((e, fan_in, fan_out)), np.float32(0.002)
                tensors[stack], tensors[stack + "_weight_scale"], tensors[stack + "_input_scale"] = eight, np.array(factor), np.array(0.01, np.float32)
                value = (eight.astype(np.float32) * factor).swapaxes(1, 2)
            want[stack] = np.ascontiguousarray(value.astype(BF16).swapaxes(1, 2))  # transformers: [E, in, out]
        section = {"mxfp4": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}}.get(kind, {"quant_method": "modelopt", "quant_algo": kind.upper(), "ignore": ["lm_head"]})
        folder = work / f"stack-{kind}-{model['model_type']}"
        write(folder / "in", section, tensors, model)
        run("inspect", folder / "in", "--summary")
        run("verify", folder / "in", "--partial", "--quiet")
        run("convert", folder / "in", "-o", folder / "out", "--format", "bf16", "--partial", "--quiet")
        got = read(folder / "out")
        for name, value in want.items():
            assert same_bits(got[name], value), (kind, name)


def check_contradictions(work):
    """Tests an export whose list of exceptions names a quantized module, and one without input scales: each gives one
    line, and the tensors decide.
    """
    folder = work / "contradictions"
    tensors = plain_tensors() | {module + ".weight": (rng.standard_normal(shape) * 0.05).astype(BF16) for module, shape in MATRICES.items()}
    write(folder / "plain", None, tensors)
    run("quantize", folder / "plain", "-o", folder / "q", "--recipe", "w4a16_nvfp4", "--quiet")
    for name in ("nibble.json", "hf_quant_config.json"):
        (folder / "q" / name).unlink(missing_ok=True)
    run("convert", folder / "q", "-o", folder / "want", "--format", "bf16", "--quiet")
    config = json.loads((folder / "q" / "config.json").read_text())
    section = config["quantization_config"]
    section["ignore"].append("model.layers.0.mlp.up_proj")
    section["quant_algo"] = "NVFP4"
    (folder / "q" / "config.json").write_text(json.dumps(config))
    lines = run("inspect", folder / "q", "--summary").stderr.splitlines()
    assert len(lines) == 2 and any("up_proj" in line for line in lines) and any("input scale" in line for line in lines), lines
    assert run("convert", folder / "q", "-o", folder / "got", "--format", "bf16", "--quiet").stderr == ""
    assert len(json.loads(run("inspect", folder / "q", "--json").stdout)["notes"]) == 2
    one, two = read(folder / "want"), read(folder / "got")
    assert one.keys() == two.keys() and all(same_bits(one[k], two[k]) for k in one)


with tempfile.TemporaryDirectory() as work:
    work = pathlib.Path(work)
    rows = check_fp8(work)
    check_integers(work)
    check_stacks(work)
    check_contradictions(work)
    print(f"{rows} FP8 sources, INT4, and 3 kinds of stacks decode to code times scale")
