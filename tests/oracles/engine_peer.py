"""Writes tests/data/engine_peers.json: logits of transformers (FP32, eager attention) for small models whose weights
follow from their names (made_up_weights() below; tests/model/peers_test.cpp has the same rule). It covers
architectures and rotary embeddings that the golden set lacks: gemma3, sliding windows, linear and yarn scaling.
Needs torch and transformers: .cache/peers/bin/python tests/oracles/engine_peer.py
"""
import json
import os
import sys

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

SIZES = dict(vocab_size=48, hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
             head_dim=16, max_position_embeddings=512, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2, pad_token_id=0)
SILU = dict(hidden_act="silu", tie_word_embeddings=False)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=32)
FULL, SLIDING = "full_attention", "sliding_attention"
MODELS = {
    "llama-linear": dict(model_type="llama", **SIZES, **SILU, rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=2.5)),
    "llama-yarn": dict(model_type="llama", **SIZES, **SILU, rope_parameters=YARN),
    "llama-biases": dict(model_type="llama", **SIZES, **SILU, attention_bias=True, mlp_bias=True),
    "mistral-window": dict(model_type="mistral", **SIZES, **SILU, sliding_window=24),
    "qwen2-window": dict(model_type="qwen2", **{k: v for k, v in SIZES.items() if k != "head_dim"}, **SILU, use_sliding_window=True,
                         sliding_window=24, max_window_layers=2),
    "deepseek-yarn": dict(model_type="deepseek_v3", **{**SIZES, "head_dim": 8, "num_key_value_heads": 4}, **SILU, q_lora_rank=32, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8,
                          v_head_dim=24, first_k_dense_replace=4, n_routed_experts=8, n_group=2, topk_group=1, num_experts_per_tok=2,
                          moe_intermediate_size=16, rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=0.7)),
    "gemma3": dict(model_type="gemma3_text", **SIZES, hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=True,
                   query_pre_attn_scalar=20, sliding_window=24, layer_types=[SLIDING, SLIDING, FULL, SLIDING], rope_parameters={
                       FULL: dict(rope_type="linear", rope_theta=1e6, factor=8.0), SLIDING: dict(rope_type="default", rope_theta=1e4)}),
}


def made_up_weights(name, shape, gemma):
    """Returns BF16 numbers of a linear congruential generator seeded by the name."""
    state = np.uint32(12345 + sum(b * (i + 1) for i, b in enumerate(name.encode())))
    values = np.empty(int(np.prod(shape)), np.float32)
    x = int(state)
    for i in range(values.size):
        x = (x * 1664525 + 1013904223) & 0xFFFFFFFF
        values[i] = (x >> 8) / 16777216.0 - 0.5
    if name.endswith("norm.weight"):
        values = (values if gemma else values + np.float32(1)).astype(np.float32)
    elif "embed_tokens" in name:
        values *= np.float32(2)
    else:
        values *= np.float32(0.5)
    return torch.from_numpy(values.reshape(shape)).bfloat16().float()


def main():
    tokens = [(i * i * 7 + 3 * i + 5) % 48 for i in range(80)]
    models = []
    for name, fields in MODELS.items():
        config = AutoConfig.for_model(**fields)
        config._attn_implementation = "eager"
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
        gemma = fields["model_type"].startswith("gemma")
        with torch.no_grad():
            shapes = {}
            for key, p in model.named_parameters():
                p.copy_(made_up_weights(key, tuple(p.shape), gemma))
                shapes[key] = list(p.shape)
            logits = model(torch.tensor([tokens])).logits[0]
        rows = [0, 23, 24, 25, 79]
        models.append(dict(name=name, config=fields, tensors=shapes, rows=rows,
                           logits=[[float(f"{x:.8g}") for x in logits[r]] for r in rows], largest=float(logits.abs().max())))
        print(name, float(logits.abs().max()), file=sys.stderr)
    path = os.path.join(os.path.dirname(__file__), "../data/engine_peers.json")
    with open(path, "w") as f:
        f.write("{\"tokens\": " + json.dumps(tokens) + ",\n\"models\": [\n" + ",\n".join(json.dumps(m) for m in models) + "]}\n")


main()
