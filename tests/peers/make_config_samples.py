"""Writes tests/data/configs: a small configuration of each family, as transformers saves it.

    python make_config_samples.py OUT        writes OUT/FAMILY.vN.json, N = major version of the installed transformers;
                                             version 5 also reads tests/data/golden/models and writes OUT/golden-MODEL.v5.json

Version 4 (4.57.3) wrote the v4 files and version 5 (5.23.0) the v5 files. Files are never deleted or renamed.
nemotron_h has no class in version 4: its v4 file has the spelling of the published checkpoints.
"""

import json
import sys
import tempfile
from pathlib import Path

import transformers

COMMON = dict(vocab_size=256, hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
              max_position_embeddings=512, bos_token_id=1, eos_token_id=2, dtype="bfloat16")
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
FAMILIES = {
    "llama": dict(rope_theta=500000.0, rope_scaling=LLAMA3),
    "mistral": dict(rope_theta=1000000.0, sliding_window=32, head_dim=32),
    "mixtral": dict(num_local_experts=4, num_experts_per_tok=2),
    "qwen2": dict(rope_theta=1000000.0, use_sliding_window=True, sliding_window=32, max_window_layers=2, tie_word_embeddings=True),
    "qwen3": dict(rope_theta=1000000.0, head_dim=32, rope_scaling=YARN),
    "qwen3_moe": dict(rope_theta=1000000.0, head_dim=32, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32,
                      norm_topk_prob=True),
    "gemma3_text": dict(head_dim=32, query_pre_attn_scalar=32, sliding_window=16, rope_theta=1000000.0, rope_local_base_freq=20000.0,
                        rope_scaling={"rope_type": "linear", "factor": 8.0}),
    "deepseek_v3": dict(moe_intermediate_size=32, n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=2, n_group=2, topk_group=1,
                        first_k_dense_replace=1, kv_lora_rank=32, q_lora_rank=48, qk_rope_head_dim=16, qk_nope_head_dim=16, v_head_dim=16,
                        rope_theta=10000.0,
                        rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "mscale": 1.0,
                                      "mscale_all_dim": 1.0, "beta_fast": 32.0, "beta_slow": 1.0}),
    "nemotron_h": dict(layers_block_type=["linear_attention", "moe", "full_attention", "mlp"], head_dim=16, mamba_num_heads=8,
                       mamba_head_dim=16, n_groups=2, ssm_state_size=16, chunk_size=16, n_routed_experts=8, num_experts_per_tok=2,
                       moe_intermediate_size=32, moe_shared_expert_intermediate_size=48),
}


def make_config(family, **changes):
    """Returns the family's sample as a configuration object; `changes` are further keyword arguments."""
    kwargs = {**COMMON, **FAMILIES[family], **changes}
    if family == "nemotron_h":
        kwargs.pop("num_hidden_layers")
    return transformers.CONFIG_MAPPING[family](**kwargs)


def main():
    out = Path(sys.argv[1])
    major = int(transformers.__version__.split(".")[0])
    for family in FAMILIES:
        if major < 5 and family not in transformers.CONFIG_MAPPING:
            continue
        with tempfile.TemporaryDirectory() as folder:
            make_config(family).save_pretrained(folder)
            (out / f"{family}.v{major}.json").write_bytes((Path(folder) / "config.json").read_bytes())
    if major < 5:
        return
    for model in sorted((out.parent / "golden/models").iterdir()):
        with tempfile.TemporaryDirectory() as folder:
            transformers.AutoConfig.from_pretrained(model).save_pretrained(folder)
            (out / f"golden-{model.name}.v5.json").write_bytes((Path(folder) / "config.json").read_bytes())


if __name__ == "__main__":
    main()
