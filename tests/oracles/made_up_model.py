"""Writes small Llama checkpoints whose weights follow from their names, in any of the three source dtypes, with Python
only. So the expectations in tests/data/modelopt/*.json can be tested without stored weights.

    made_up_model.py FOLDER '{"dtype": "float16", "hidden_size": 160, ...}'

A weight is a sum of four 16-bit random numbers (Mersenne Twister, seeded with the tensor's name), scaled by a power of
two. It is exact, so every machine rounds it to the same F32, F16 or BF16 number. Some matrices have a zero block, a
zero row, a block near underflow, large single values, and ties.
"""
import argparse
import json
import pathlib
import random
import struct

DTYPES = {"bfloat16": ("BF16", 2), "float16": ("F16", 2), "float32": ("F32", 4)}


def encode(values, dtype):
    if dtype == "float32":
        return struct.pack(f"<{len(values)}f", *values)
    if dtype == "float16":
        return struct.pack(f"<{len(values)}e", *values)
    bits = struct.unpack(f"<{len(values)}I", struct.pack(f"<{len(values)}f", *values))
    return struct.pack(f"<{len(values)}H", *(((b + 0x7FFF + (b >> 16 & 1)) >> 16) & 0xFFFF for b in bits))


def weights(name, rows, cols, scale):
    source = random.Random(name)
    step = scale / 131072.0
    values = []
    for _ in range(rows * cols):
        r = source.getrandbits(64)
        values.append(((r & 0xFFFF) + (r >> 16 & 0xFFFF) + (r >> 32 & 0xFFFF) + (r >> 48) - 131070) * step)
    if rows < 8 or cols < 64:
        return values
    for at in range(1000, rows * cols, 4093):  # single large values
        values[at] *= 6.0
    for k in range(32):
        values[2 * cols + k] = 0.0  # a zero block
        values[3 * cols + 32 + k] *= 2.0**-18  # a block near underflow
        values[4 * cols + k] = (k % 16 - 8) * 0.125 * scale  # ties
    if "gate_proj" in name:
        values[5 * cols : 6 * cols] = [0.0] * cols  # a zero row
    return values


def shapes(config):
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    q, kv = config["num_attention_heads"] * config["head_dim"], config["num_key_value_heads"] * config["head_dim"]
    yield "model.embed_tokens.weight", [vocab, hidden]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for name, rows, cols in (("self_attn.q_proj", q, hidden), ("self_attn.k_proj", kv, hidden), ("self_attn.v_proj", kv, hidden),
                                 ("self_attn.o_proj", hidden, q), ("mlp.gate_proj", inner, hidden), ("mlp.up_proj", inner, hidden),
                                 ("mlp.down_proj", hidden, inner)):
            yield f"{prefix}{name}.weight", [rows, cols]
        yield prefix + "input_layernorm.weight", [hidden]
        yield prefix + "post_attention_layernorm.weight", [hidden]
        if config.get("model_type") == "gemma3_text":
            yield prefix + "pre_feedforward_layernorm.weight", [hidden]
            yield prefix + "post_feedforward_layernorm.weight", [hidden]
            yield prefix + "self_attn.q_norm.weight", [config["head_dim"]]
            yield prefix + "self_attn.k_norm.weight", [config["head_dim"]]
    yield "model.norm.weight", [hidden]
    if not config.get("tie_word_embeddings"):
        yield "lm_head.weight", [vocab, hidden]


def write_model(folder, config, stored=None):
    """Writes the model. `stored`: the dtype of the tensors if it differs from the one in config.json."""
    dtype = stored or config.get("dtype") or config["torch_dtype"]
    name_of, size = DTYPES[dtype]
    header, data, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name, shape in shapes(config):
        if len(shape) == 1:
            values = weights(name, 1, shape[0], 2.0**-4)
            values = [1.0 + v for v in values]
        else:
            values = weights(name, *shape, 2.0**-3)
        data.append(encode(values, dtype))
        header[name] = {"dtype": name_of, "shape": shape, "data_offsets": [at, at + len(data[-1])]}
        at += len(data[-1])
        assert len(data[-1]) == size * len(values)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("config", type=json.loads)
    parser.add_argument("--stored")
    args = parser.parse_args()
    write_model(args.folder, args.config, args.stored)
