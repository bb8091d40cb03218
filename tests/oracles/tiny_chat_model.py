"""Writes tests/data/chat: a Llama of two layers with random weights, the tokenizer of tests/data/text/byte_level.json
and a chat template, to test programs that run a model on machines without one. `tiny_chat_model.py DIR [--noise
0.05]`: with noise, a second model close to the first one. Needs numpy, ml-dtypes and safetensors.
"""
import argparse
import json
import pathlib
import shutil

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

p = argparse.ArgumentParser()
p.add_argument("dir", type=pathlib.Path)
p.add_argument("--noise", type=float, default=0)
a = p.parse_args()
vocab, hidden, inner, layers, heads, kv, dim = 272, 32, 48, 2, 4, 2, 8
rng, noise = np.random.default_rng(1), np.random.default_rng(2)


def bf16(x):
    return (x * (1 + a.noise * noise.standard_normal(x.shape))).astype(ml_dtypes.bfloat16)


def matrix(rows, cols, scale=1.0):
    return bf16(rng.standard_normal((rows, cols)) * scale / np.sqrt(cols))


tensors = {"model.embed_tokens.weight": matrix(vocab, hidden, 3.0)}
for i in range(layers):
    n = f"model.layers.{i}."
    for name, rows, cols in (("self_attn.q_proj", heads * dim, hidden), ("self_attn.k_proj", kv * dim, hidden), ("self_attn.v_proj", kv * dim, hidden),
                             ("self_attn.o_proj", hidden, heads * dim), ("mlp.gate_proj", inner, hidden), ("mlp.up_proj", inner, hidden),
                             ("mlp.down_proj", hidden, inner)):
        tensors[n + name + ".weight"] = matrix(rows, cols)
    for name in ("input_layernorm", "post_attention_layernorm"):
        tensors[n + name + ".weight"] = bf16(np.ones(hidden))
tensors["model.norm.weight"] = bf16(np.ones(hidden))
config = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "hidden_size": hidden, "intermediate_size": inner,
    "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": dim, "vocab_size": vocab, "rms_norm_eps": 1e-5,
    "hidden_act": "silu", "max_position_embeddings": 1024, "rope_theta": 10000.0, "tie_word_embeddings": True, "bos_token_id": 269, "eos_token_id": 271}
template = ("{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}<mask>{% endfor %}"
            "{% if add_generation_prompt %}<s>assistant\n{% endif %}")
a.dir.mkdir(parents=True, exist_ok=True)
save_file(tensors, a.dir / "model.safetensors", metadata={"format": "pt"})
(a.dir / "config.json").write_text(json.dumps(config, indent=1) + "\n")
(a.dir / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "<mask>", "chat_template": template}, indent=1) + "\n")
shutil.copyfile(pathlib.Path(__file__).parent.parent / "data/text/byte_level.json", a.dir / "tokenizer.json")
