"""Sources in other programs' files: torch.save()'s pickles, Mistral's params.json, packed INT4 of GPTQ, AWQ and
compressed-tensors. Each must open with every command and give the values that numpy computes. Pickles that are not a plain
dictionary of tensors are refused with one line, and no code of them runs.

    other_sources.py NIBBLE     exit status 77: a package is missing
"""

import collections
import json
import os
import pathlib
import pickle
import shutil
import subprocess
import sys
import tempfile
import zipfile

import own_packages

own_packages.need("ml_dtypes", "numpy", "safetensors")
import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy
import torch_writer

nibble = str(pathlib.Path(sys.argv[1]).resolve())
rng = np.random.default_rng(11)
BF16 = ml_dtypes.bfloat16
HIDDEN, INNER, HEAD, KV, VOCAB = 128, 192, 32, 64, 64
CONFIG = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": 2,
          "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": HEAD, "vocab_size": VOCAB, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
          "hidden_act": "silu", "tie_word_embeddings": False, "rope_theta": 10000.0, "torch_dtype": "bfloat16", "sliding_window": None}
SHAPES = {"self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (KV, HIDDEN), "self_attn.v_proj": (KV, HIDDEN), "self_attn.o_proj": (HIDDEN, HIDDEN),
          "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN), "mlp.down_proj": (HIDDEN, INNER)}
MATRICES = {f"model.layers.{layer}.{name}": shape for layer in range(2) for name, shape in SHAPES.items()}


def run(*command, fails=None):
    done = subprocess.run([nibble, *map(str, command)], capture_output=True, text=True)
    text = f"{' '.join(map(str, command))}: status {done.returncode}: {done.stderr[-800:]}"
    assert (done.returncode != 0) == (fails is not None), text
    if fails is not None:
        assert fails in done.stderr and done.stderr.count("\n") == 1, text
    return done


def model():
    tensors = {name: (rng.standard_normal(shape) * 0.08).astype(BF16) for name, shape in (("model.embed_tokens.weight", (VOCAB, HIDDEN)), ("lm_head.weight", (VOCAB, HIDDEN)))}
    names = ["model.norm"] + [f"model.layers.{i}.{n}_layernorm" for i in range(2) for n in ("input", "post_attention")]
    tensors |= {name + ".weight": (1 + rng.standard_normal(HIDDEN) * 0.1).astype(BF16) for name in names}
    return tensors | {name + ".weight": (rng.standard_normal(shape) * 0.08).astype(BF16) for name, shape in MATRICES.items()}


def write(folder, tensors, config, name="model.safetensors", config_name="config.json"):
    folder.mkdir(parents=True)
    (folder / config_name).write_text(json.dumps(config))
    safetensors.numpy.save_file(tensors, folder / name, metadata={"format": "pt"})
    return folder


def stored(folder):
    out = {}
    for path in sorted(folder.glob("*.safetensors")):
        out |= {name: (t["dtype"], tuple(t["shape"]), bytes(t["data"])) for name, t in safetensors.deserialize(path.read_bytes())}
    return out


def check(work, name, source, want):
    """`want`: name -> array. Every command gives what it gives for the plain folder of `want`."""
    base = work / name
    plain = write(base / "plain", want, CONFIG)
    ids = base / "ids.safetensors"
    safetensors.numpy.save_file({"input_ids": rng.integers(3, VOCAB, (2, 24)).astype(np.int64)}, ids)
    run("inspect", source, "--summary")
    run("verify", source, "--quiet")
    run("convert", source, "-o", base / "bf16", "--format", "bf16", "--quiet")
    assert stored(base / "bf16") == stored(plain), name
    results = []
    for i, folder in enumerate((source, plain)):
        run("logits", folder, "--ids", ids, "-o", base / f"logits{i}.safetensors", "--weights-only", "--quiet")
        run("quantize", folder, "-o", base / f"q{i}", "--recipe", "nvfp4", "--calib", ids, "--requantize", "--quiet")
        run("verify", base / f"q{i}", "--against", folder, "--quiet")
        results.append((stored(base / f"q{i}"), (base / f"logits{i}.safetensors").read_bytes()))
    assert results[0] == results[1], name
    shutil.rmtree(base)


# ---- torch.save() ----------------------------------------------------------------------------------------------------


def torch_folder(folder, files, index=None):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    for name, data in files.items():
        (folder / name).write_bytes(data)
    if index:
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return folder


def saved(tensors, **options):
    dtypes = {np.dtype(BF16): "BF16", np.dtype(np.float32): "F32", np.dtype(np.float16): "F16"}
    if not torch_writer.HAS_TORCH:
        return torch_writer.save({name: (dtypes[t.dtype], t) for name, t in tensors.items()}, **options)
    import io
    import torch
    parameters = options.get("parameters")
    values = collections.OrderedDict()
    for name, t in tensors.items():
        value = torch.from_numpy(np.ascontiguousarray(t).view(np.uint16 if t.dtype == BF16 else t.dtype).copy())
        value = value.view(torch.bfloat16) if t.dtype == BF16 else value
        values[name] = torch.nn.Parameter(value) if parameters else value
    out = io.BytesIO()
    torch.save(values, out)
    return out.getvalue()


class Instance:
    """An object of a class that is not part of tensors."""


def check_torch(work):
    tensors = model()
    for parameters in (False, True):
        source = torch_folder(work / f"torch{parameters}" / "in", {"pytorch_model.bin": saved(tensors, parameters=parameters)})
        check(work, f"torch{parameters}", source, tensors)
    names = sorted(tensors)
    shards = {"pytorch_model-00001-of-00002.bin": names[: len(names) // 2], "pytorch_model-00002-of-00002.bin": names[len(names) // 2 :]}
    source = torch_folder(work / "sharded" / "in", {file: saved({n: tensors[n] for n in part}) for file, part in shards.items()},
                          {n: file for file, part in shards.items() for n in part})
    check(work, "sharded", source, tensors)
    if torch_writer.HAS_TORCH:
        return
    # Things that are not in files of torch.
    small = {"a": ("BF16", np.zeros((2, 3), BF16))}
    storage = torch_writer.Storage("F32", "0", 6)

    class Runs:
        def __reduce__(self):
            return os.system, (f"touch {work}/code-has-run",)

    def one(value, data=b"\0" * 24):
        return torch_writer.archive(torch_writer.pickled(collections.OrderedDict(a=value)), {"0": data})

    whole = torch_writer.save(small)
    cases = [
        (one(Runs()), "names 'posix.system'"),
        (one(Instance()), "which is not a part of tensors"),
        (one(eval), "names '__builtin__.eval'"),
        (one(3), "tensor 'a': is not a tensor"),
        (one({"b": torch_writer.Tensor(storage, 0, (2, 3), (3, 1))}), "tensor 'a': is not a tensor"),
        (one(torch_writer.Tensor(storage, 0, (3, 2), (1, 3))), "is not contiguous"),
        (one(torch_writer.Tensor(storage, 1, (2, 3), (3, 1))), "is larger than its data"),
        (one(torch_writer.Tensor(storage, -1, (2, 3), (3, 1))), "an invalid size or offset"),
        (one(torch_writer.Tensor(storage, 0, (2**40, 2**40), (1, 1))), "an invalid size or offset"),
        (one(torch_writer.Tensor(torch_writer.Storage("F32", "1", 6), 0, (2, 3), (3, 1))), "'archive/data/1' are missing"),
        (torch_writer.archive(torch_writer.pickled([1]), {}), "is not a dictionary of tensors"),
        (torch_writer.save(small, compression=zipfile.ZIP_DEFLATED), "is compressed"),
        (torch_writer.save(small, byteorder=b"big"), "not little-endian"),
        (whole[: len(whole) // 2], "not a ZIP archive"),
        (pickle.dumps({}), "is not a ZIP archive of torch.save()"),
        (torch_writer.archive(torch_writer.pickled({}) [:-1], {}), "cut short"),
        (torch_writer.archive(b"\x80\x02(ios\nsystem\n.", {}), "the opcode 0x69"),
        (b"", "is not a ZIP archive"),
    ]
    for i, (data, message) in enumerate(cases):
        source = torch_folder(work / f"hostile{i}", {"pytorch_model.bin": data})
        for command in (["inspect", source], ["convert", source, "-o", work / "never", "--format", "bf16"]):
            run(*command, fails=message)
    assert not (work / "code-has-run").exists()


# ---- Mistral's own layout --------------------------------------------------------------------------------------------

PARAMS = {"dim": HIDDEN, "n_layers": 2, "head_dim": HEAD, "hidden_dim": INNER, "n_heads": 4, "n_kv_heads": 2, "norm_eps": 1e-5, "vocab_size": VOCAB,
          "rope_theta": 10000.0, "max_position_embeddings": 128}
NAMES = {"self_attn.q_proj": "attention.wq", "self_attn.k_proj": "attention.wk", "self_attn.v_proj": "attention.wv", "self_attn.o_proj": "attention.wo",
         "mlp.gate_proj": "feed_forward.w1", "mlp.down_proj": "feed_forward.w2", "mlp.up_proj": "feed_forward.w3",
         "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm"}


def consolidated(tensors):
    out = {}
    for name, t in tensors.items():
        for hf, own in (("model.embed_tokens", "tok_embeddings"), ("model.norm", "norm"), ("lm_head", "output"), *NAMES.items()):
            name = name.replace(hf, own)
        if ".wq." in name or ".wk." in name:  # the inverse of transformers' permutation
            t = t.reshape(-1, 2, HEAD // 2, HIDDEN).swapaxes(1, 2).reshape(t.shape)
        out[name.removeprefix("model.")] = np.ascontiguousarray(t)
    return out


def check_mistral(work):
    tensors = model()
    own = consolidated(tensors)
    assert "layers.1.attention.wq.weight" in own and "output.weight" in own, sorted(own)
    check(work, "mistral", write(work / "mistral" / "in", own, PARAMS, "consolidated.safetensors", "params.json"), tensors)
    # FP8: the codes move with their rows.
    fp8, want = dict(own), dict(tensors)
    for name in MATRICES:
        codes = (rng.standard_normal(MATRICES[name]) * 40).astype(ml_dtypes.float8_e4m3fn)
        moved = consolidated({name + ".weight": codes})
        [(key, value)] = moved.items()
        fp8[key], fp8[key.replace(".weight", ".qscale_weight")] = value, np.array(0.002, np.float32)
        want[name + ".weight"] = (codes.astype(np.float32) * np.float32(0.002)).astype(BF16)
    source = write(work / "fp8" / "in", fp8, PARAMS | {"quantization": {"qformat_weight": "fp8_e4m3", "qscheme_act": None}}, "consolidated.safetensors", "params.json")
    run("convert", source, "-o", work / "fp8" / "bf16", "--format", "bf16", "--quiet")
    assert stored(work / "fp8" / "bf16") == stored(write(work / "fp8" / "want", want, CONFIG))
    for i, (key, value) in enumerate((("vision_encoder", {"hidden_size": 8}), ("q_lora_rank", 8), ("moe", {"num_experts": 2, "route_every_n": 1}), ("quantization", {"bits": 4}))):
        source = write(work / f"unknown{i}", own, PARAMS | {key: value}, "consolidated.safetensors", "params.json")
        run("inspect", source, fails=key)


# ---- Packed INT4 -----------------------------------------------------------------------------------------------------


def words(codes, axis, order=range(8), bits=4):
    """Packs codes along an axis into 32-bit words, the code at order[i] of each word at bit i * bits."""
    codes = np.moveaxis(codes.astype(np.uint32), axis, -1)
    count = 32 // bits
    pad = -codes.shape[-1] % count
    codes = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, pad)])
    packed = np.zeros((*codes.shape[:-1], codes.shape[-1] // count), np.uint32)
    for i, place in zip(range(count), order):
        packed |= codes[..., place::count] << np.uint32(bits * i)
    return np.ascontiguousarray(np.moveaxis(packed, -1, axis)).view(np.int32)


def integers(shape, group, bits=4):
    """Returns codes [out, in], zero points and scales [out, groups], and the values."""
    groups = shape[1] // group
    codes, zeros = rng.integers(0, 1 << bits, shape), rng.integers(1, 1 << bits, (shape[0], groups))
    scale = rng.uniform(0.005, 0.02, (shape[0], groups)).astype(np.float16)
    return codes, zeros, scale, lambda order: ((codes - zeros[:, order]).astype(np.float32) * scale.astype(np.float32)[:, order]).astype(BF16)


def check_integers(work):
    plain = model()
    for method, bits, group, acts in (("gptq", 4, 64, False), ("gptq", 4, 32, True), ("gptq_v2", 8, 64, False), ("awq", 4, 64, False)):
        tensors, want = dict(plain), dict(plain)
        for name, shape in MATRICES.items():
            codes, zeros, scale, values = integers(shape, group, bits)
            order = np.arange(shape[1]) // group
            if acts:
                order = rng.permutation(order)
            del tensors[name + ".weight"]
            want[name + ".weight"] = values(order)
            if method == "awq":
                awq = (0, 2, 4, 6, 1, 3, 5, 7)
                tensors[name + ".qweight"], tensors[name + ".qzeros"] = words(codes.T, 1, awq), words(zeros.T, 1, awq)
            else:
                tensors[name + ".qweight"] = words(codes.T, 0, range(32 // bits), bits)
                tensors[name + ".qzeros"] = words(zeros.T - (method == "gptq"), 1, range(32 // bits), bits)
                tensors[name + ".g_idx"] = order.astype(np.int32)
            tensors[name + ".scales"] = np.ascontiguousarray(scale.T)
        section = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm", "modules_to_not_convert": None} if method == "awq" else {
            "quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": acts, "sym": False, "checkpoint_format": method, "lm_head": False, "damp_percent": 0.01}
        name = f"{method}{bits}{acts}"
        check(work, name, write(work / name / "in", tensors, CONFIG | {"quantization_config": section}), want)
    tensors, want = dict(plain), dict(plain)
    for name, shape in MATRICES.items():  # compressed-tensors with zero points
        codes, zeros, scale, values = integers(shape, 32)
        del tensors[name + ".weight"]
        tensors[name + ".weight_packed"], tensors[name + ".weight_zero_point"] = words(codes, 1), words(zeros, 0)
        tensors[name + ".weight_scale"], tensors[name + ".weight_shape"] = scale, np.array(shape, np.int64)
        want[name + ".weight"] = values(np.arange(shape[1]) // 32)
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": False, "dynamic": False}
    section = {"quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed", "ignore": ["lm_head"],
               "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}
    check(work, "asymmetric", write(work / "asymmetric" / "in", tensors, CONFIG | {"quantization_config": section}), want)
    bad = {"quant_method": "gptq", "bits": 4, "group_size": 48}
    run("inspect", write(work / "bad1", tensors | {"model.layers.0.x.qweight": np.zeros((4, 8), np.int32)}, CONFIG | {"quantization_config": bad}), fails="qzeros: is missing")
    run("inspect", write(work / "bad2", plain, CONFIG | {"quantization_config": bad | {"bits": 3}}), fails="bits: 3 is not known")
    run("inspect", write(work / "bad3", plain, CONFIG | {"quantization_config": bad | {"checkpoint_format": "marlin"}}), fails="marlin")


with tempfile.TemporaryDirectory() as work:
    work = pathlib.Path(work)
    check_torch(work)
    check_mistral(work)
    check_integers(work)
    print("torch.save(), params.json, GPTQ, AWQ and INT4 with zero points: all commands agree with the decoded forms")
