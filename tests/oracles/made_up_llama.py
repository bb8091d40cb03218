"""Writes a BF16 Llama with random weights: FOLDER GIGABYTES [VOCABULARY]. One bell-shaped matrix is reused with rolled
rows, so that it takes only seconds.
"""
import json
import pathlib
import sys

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

HIDDEN, WIDE, KV = 2048, 8192, 512


def main():
    folder, gigabytes = pathlib.Path(sys.argv[1]), float(sys.argv[2])
    vocabulary = int(sys.argv[3]) if len(sys.argv) > 3 else 8192
    folder.mkdir(parents=True)
    base = (np.random.default_rng(1).standard_normal((WIDE, HIDDEN)) * 0.02).astype(ml_dtypes.bfloat16)
    per_layer = 2 * (2 * HIDDEN * HIDDEN + 2 * KV * HIDDEN + 3 * WIDE * HIDDEN)
    layers = max(1, round(gigabytes * 1e9 / per_layer))
    ones = np.ones(HIDDEN, dtype=ml_dtypes.bfloat16)
    tensors = {"model.embed_tokens.weight": base[:vocabulary], "model.norm.weight": ones}
    for n in range(layers):
        p, w = f"model.layers.{n}.", np.roll(base, n, axis=0)
        shapes = {"self_attn.q_proj": HIDDEN, "self_attn.k_proj": KV, "self_attn.v_proj": KV, "self_attn.o_proj": HIDDEN,
                  "mlp.gate_proj": WIDE, "mlp.up_proj": WIDE}
        tensors |= {f"{p}{name}.weight": w[:rows] for name, rows in shapes.items()}
        tensors[p + "mlp.down_proj.weight"] = w.reshape(HIDDEN, WIDE)
        tensors |= {p + "input_layernorm.weight": ones, p + "post_attention_layernorm.weight": ones}
    # Contiguous copies, because the writer does not accept views.
    save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": WIDE,
              "num_hidden_layers": layers, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": vocabulary,
              "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
              "tie_word_embeddings": True, "torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config))


if __name__ == "__main__":
    main()
