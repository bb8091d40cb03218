"""Creates tiny random models of many model types, as transformers saves them: make(NAME, FOLDER).

A configuration starts with the class's defaults; fields that set a size are made small by name. SPECIAL has further
requirements of a type. Names with "+" are variants of one type.
"""

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, CONFIG_MAPPING

SMALL = {
    "vocab_size": 256, "hidden_size": 64, "d_model": 64, "n_embd": 64, "intermediate_size": 96, "ffn_dim": 96, "ffn_hidden_size": 96, "n_inner": 96,
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "max_position_embeddings": 512, "max_seq_len": 512, "n_positions": 512, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "kv_lora_rank": 32, "q_lora_rank": 48, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 1, "sliding_window": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "word_embed_proj_dim": 64,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16, "mamba_n_heads": 8,
    "mamba_d_head": 16, "mamba_d_ssm": 128, "mamba_n_groups": 1, "mamba_d_state": 16, "mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2,
    "ssm_state_size": 16, "chunk_size": 16, "moe_shared_expert_intermediate_size": 48, "index_n_heads": 2, "index_head_dim": 16, "index_topk": 16,
    "query_pre_attn_scalar": 16, "global_head_dim": 32, "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 256, "num_kv_shared_layers": 0, "top_k_experts": 2, "dense_intermediate_size": 96, "rotary_dim": 16,
    "shared_intermediate_size": 48, "mamba_dt_rank": 4, "num_heads": 4, "state_size": 16, "embed_dim": 32, "depth": 2, "image_size": 28,
    "patch_size": 14, "out_hidden_size": 64, "attn_hidden_size": 64, "hidden_channels": 32, "num_nextn_predict_layers": 0, "num_mtp_layers": 0,
}
VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "depth": 1,
          "num_heads": 2, "image_size": 28, "patch_size": 14, "out_hidden_size": 64, "embed_dim": 32, "head_dim": 16}
TYPES = """llama llama4_text llama4 qwen2 qwen2_moe qwen3 qwen3_moe qwen3_next qwen3_5 qwen3_5_text qwen3_5_moe qwen4_exp qwen2_5_vl qwen3_vl
qwen3_vl_moe mistral ministral ministral3 mistral3 mistral4 mixtral gemma gemma2 gemma3_text gemma3 gemma3n_text gemma4_text gemma4 phi3 phimoe
phi gpt_oss deepseek_v2 deepseek_v3 deepseek_v32 deepseek_v4 kimi_k25 kimi_linear glm5_next glm_moe_dsa glm4_moe_lite glm4_moe glm4 glm
longcat_flash bailing_hybrid minimax_m2 minimax_m3_vl_text minimax nemotron_h nemotron granite granitemoe granitemoehybrid falcon_h1 bamba mamba2
lfm2 lfm2_moe lfm3 jamba zamba2 olmo_hybrid olmo2 olmo3 olmoe smollm3 cohere cohere2 cohere2_moe seed_oss exaone4 exaone_moe hunyuan_v1_dense
hunyuan_v1_moe hy_v3 ernie4_5 ernie4_5_moe step3p7 dots1 solar_open mimo_v2_flash afmoe laguna stablelm starcoder2 arcee apertus helium internvl
gpt_neox opt falcon gpt2 bloom nemotron_h+moe gemma4_text+shared llama+tied""".split()
SPECIAL = {
    "glm5_next.text_config": {"num_key_value_heads": 4, "qk_rope_head_dim": 0},
    "mamba2": {"num_heads": 8},
    "deepseek_v3": {"num_key_value_heads": 4},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "zamba2": {"num_hidden_layers": 4, "layer_types": ["linear_attention", "hybrid", "linear_attention", "hybrid"], "mamba_ngroups": 1,
               "n_mamba_heads": 8, "mamba_headdim": 16, "num_mem_blocks": 1, "use_shared_attention_adapter": True},
    "dots1": {"n_shared_experts": 1, "n_routed_experts": 4},
    "longcat_flash": {"ffn_hidden_size": 96, "expert_ffn_hidden_size": 32, "zero_expert_num": 2, "num_layers": 2},
    "qwen3_next": {"layer_types": ["linear_attention", "full_attention"]},
    "qwen3_5_text": {"layer_types": ["linear_attention", "full_attention"]},
    "nemotron_h": {"sliding_window": None},
    "nemotron_h+moe": {"sliding_window": None, "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp", "moe"],
                       "moe_latent_size": 32},
    "gemma4_text+shared": {"num_hidden_layers": 6, "hidden_size_per_layer_input": 16, "num_kv_shared_layers": 2,
                           "layer_types": ["sliding_attention", "full_attention"] * 3},
    "llama+tied": {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
}


def small_fields(cls, table):
    names = set(getattr(cls, "__dataclass_fields__", {})) | set(cls.attribute_map)
    return {k: v for k, v in table.items() if k in names}


def make_config(name):
    model_type = name.split("+")[0]
    cls = CONFIG_MAPPING[model_type]
    kwargs = small_fields(cls, SMALL)
    for part, spec in cls.sub_configs_defaults.items():
        inner = spec.config_class
        if not issubclass(inner, transformers.PreTrainedConfig):
            inner = CONFIG_MAPPING[spec.model_type]
        table = SMALL if "text" in part else {**SMALL, **VISION}
        kwargs[part] = {**small_fields(inner, table), **SPECIAL.get(f"{name}.{part}", SPECIAL.get(f"*.{inner.model_type}", {}))}
        if not issubclass(spec.config_class, transformers.PreTrainedConfig):
            kwargs[part]["model_type"] = spec.model_type
    kwargs.update(SPECIAL.get(name, {}))
    return cls(**{k: v for k, v in kwargs.items() if v != "drop"})


def make(name, folder):
    torch.manual_seed(0)
    config = make_config(name)
    last = None
    for auto in (AutoModelForCausalLM, AutoModelForImageTextToText):
        if type(config) in auto._model_mapping:
            model = auto.from_config(config, dtype=torch.bfloat16)
            model.save_pretrained(folder)
            return
    raise ValueError(f"{name}: no model class")
