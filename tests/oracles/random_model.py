"""Writes a Llama-shaped checkpoint of random BF16 weights: `random_model.py DIR --hidden 2048 --inner 8192 --layers
16`.

Needs only Python's standard library. Weights have random mantissas and signs and small exponents, so they are finite
and quantize like real weights. --experts N gives every MLP N experts (many small tensors).
"""
import argparse
import json
import os
import random
import struct


def weights(rng, count):
    """Returns `count` BF16 values between 2^-14 and 2^-6 in magnitude."""
    out = bytearray(2 * count)
    out[0::2] = rng.randbytes(count)
    out[1::2] = rng.randbytes(count).translate(bytes((b & 0x80) | (0x38 + (b & 3)) for b in range(256)))
    return bytes(out)


def shapes(a):
    yield "model.embed_tokens.weight", [a.vocab, a.hidden]
    for layer in range(a.layers):
        p = f"model.layers.{layer}."
        yield p + "input_layernorm.weight", [a.hidden]
        for name, rows in (("q", a.hidden), ("k", a.hidden // 4), ("v", a.hidden // 4), ("o", a.hidden)):
            yield p + f"self_attn.{name}_proj.weight", [rows, a.hidden]
        yield p + "post_attention_layernorm.weight", [a.hidden]
        if a.experts:
            yield p + "mlp.gate.weight", [a.experts, a.hidden]
        for e in range(max(a.experts, 1)):
            m = p + (f"mlp.experts.{e}." if a.experts else "mlp.")
            yield m + "gate_proj.weight", [a.inner, a.hidden]
            yield m + "up_proj.weight", [a.inner, a.hidden]
            yield m + "down_proj.weight", [a.hidden, a.inner]
    yield "model.norm.weight", [a.hidden]
    yield "lm_head.weight", [a.vocab, a.hidden]


def write_shard(path, tensors, rng):
    header, at = {}, 0
    for name, shape in tensors:
        size = 2
        for d in shape:
            size *= d
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name, shape in tensors:
            left = header[name]["data_offsets"][1] - header[name]["data_offsets"][0]
            while left:  # in chunks, because a tensor may be larger than memory
                n = min(left, 1 << 26)
                f.write(weights(rng, n // 2))
                left -= n
    return at


def make(folder, a):
    os.makedirs(folder)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "hidden_size": a.hidden,
              "intermediate_size": a.inner, "num_hidden_layers": a.layers, "num_attention_heads": a.hidden // 64,
              "num_key_value_heads": a.hidden // 256, "vocab_size": a.vocab, "rms_norm_eps": 1e-5, "hidden_act": "silu",
              "max_position_embeddings": 2048, "rope_theta": 10000.0, "tie_word_embeddings": False}
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f, indent=2)
    every = list(shapes(a))
    rng = random.Random(a.seed)
    if a.shards == 1:
        write_shard(os.path.join(folder, "model.safetensors"), every, rng)
        return
    weight_map, total = {}, 0
    for s in range(a.shards):
        part = every[len(every) * s // a.shards:len(every) * (s + 1) // a.shards]
        name = f"model-{s + 1:05}-of-{a.shards:05}.safetensors"
        total += write_shard(os.path.join(folder, name), part, rng)
        weight_map.update({t: name for t, _ in part})
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, f)


def parser():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("hidden", 256), ("inner", 768), ("layers", 4), ("vocab", 2048), ("experts", 0), ("shards", 1), ("seed", 1)):
        p.add_argument("--" + name, type=int, default=value)
    return p


if __name__ == "__main__":
    p = parser()
    p.add_argument("folder")
    arguments = p.parse_args()
    make(arguments.folder, arguments)
