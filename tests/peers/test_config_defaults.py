"""Compares nibble's defaults of missing fields with those of transformers' configuration classes: the canonical configuration of
a file with only a model type, and of the file that the class writes.

    test_config_defaults.py NIBBLE
"""

import json
import pathlib
import subprocess
import sys
import tempfile

try:
    import torch
    import transformers
    from safetensors.torch import save_file
except ImportError:
    sys.exit(77)

FAMILIES = """llama mistral mixtral ministral3 qwen2 qwen3 qwen3_moe qwen3_vl_moe_text gemma3_text deepseek_v3 glm4_moe_lite glm4_moe dots1 nemotron_h
    seed_oss smollm3 granite olmo2 olmo3 exaone4 hunyuan_v1_dense hunyuan_v1_moe phi3 minimax_m2 ernie4_5_moe
    gemma2 gemma4_text gpt_oss starcoder2 stablelm phimoe mimo_v2_flash mistral4 llama4_text step3p5 cohere2 qwen3_next qwen3_5_text qwen3_5_moe_text
    lfm2 lfm2_moe granitemoehybrid falcon_h1 kimi_linear deepseek_v32 glm_moe_dsa minimax_m3_vl_text deepseek_v4
    granitemoe granitemoeshared""".split()
# Fields that the forward pass does not use, or that nibble derives from other fields.
NOT_COMPARED = set(
    """architectures model_type transformers_version output_hidden_states return_dict dtype chunk_size_feed_forward is_encoder_decoder id2label
    label2id problem_type initializer_range use_cache pad_token_id bos_token_id eos_token_id pretraining_tp attention_dropout output_attentions
    output_router_logits router_aux_loss_coef router_jitter_noise hidden_dropout num_nextn_predict_layers mtp_layers_block_type time_step_min
    time_step_max time_step_floor use_mamba_kernels rescale_prenorm_residual residual_in_fp32 num_logits_to_keep mamba_ssm_cache_dtype expand
    chunk_size moe_shared_expert_overlap _name_or_path mlp_only_layers layer_types head_dim num_key_value_heads qk_head_dim sliding_window
    sliding_window_pattern _sliding_window_pattern num_hidden_layers per_layer_config embedding_dropout residual_dropout input_jitter_noise
    mlp_layer_types moe_layers indexer_types no_rope_layers num_sliding_attention_heads eod_token_id sep_token_id embd_pdrop resid_pdrop
    mamba_chunk_size""".split())
# Defaults that the class computes from other fields.
DERIVED = {
    ("step3p5", "query_pre_attn_scalar"),
    ("step3p5", "rope_parameters"),
    ("mistral4", "rope_parameters"),
    ("lfm2", "full_attn_idxs"),
    ("ernie4_5_moe", "moe_layer_end_index"),
    ("granitemoehybrid", "mamba_d_head"),
    ("falcon_h1", "mamba_d_head"),
}
# The family's reader has these defaults, because their spelling depends on other fields.
DERIVED |= {("deepseek_v4", key) for key in "compress_rates partial_rotary_factor qk_rope_head_dim rope_parameters rope_theta".split()}


def canonical(nibble, folder):
    """Returns the canonical configuration of a folder."""
    done = subprocess.run([nibble, "inspect", folder, "--json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["canonical_config"]


def main():
    nibble = str(pathlib.Path(sys.argv[1]).resolve())
    wrong = []
    for family in FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "config.json").write_text(json.dumps({"model_type": family}))
            save_file({"model.norm.weight": torch.ones(4, dtype=torch.bfloat16)}, f"{folder}/model.safetensors")
            ours = canonical(nibble, folder)
            transformers.CONFIG_MAPPING[family]().save_pretrained(folder)
            theirs = canonical(nibble, folder)
        for key, value in theirs.items():
            if key not in NOT_COMPARED and (family, key) not in DERIVED and value is not None and ours.get(key) != value:
                wrong.append(f"{family}: {key} is {ours.get(key)}, transformers has {value}")
        for key in ("num_hidden_layers", "head_dim", "num_key_value_heads", "sliding_window"):
            if ours.get(key) is not None and theirs.get(key) is not None and ours[key] != theirs[key]:
                wrong.append(f"{family}: {key} is {ours[key]}, transformers has {theirs[key]}")
    print("\n".join(wrong) or "every default is the class's")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
