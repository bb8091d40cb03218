// Minimal configs of every family.
#pragma once

#include "base/json.h"

#include <string>

namespace nibble::test {

inline Json tiny(const std::string& family) {
    Json config{{"model_type", family},       {"vocab_size", 64},       {"hidden_size", 32},
                {"intermediate_size", 48},    {"num_hidden_layers", 2}, {"num_attention_heads", 4},
                {"num_key_value_heads", 2},   {"head_dim", 8},          {"rms_norm_eps", 1e-5},
                {"hidden_act", "silu"},       {"rope_theta", 10000.0},  {"max_position_embeddings", 512},
                {"tie_word_embeddings", true}};
    if (family == "qwen3_moe")
        config.update({{"num_experts", 4},
                       {"num_experts_per_tok", 2},
                       {"moe_intermediate_size", 32},
                       {"norm_topk_prob", true},
                       {"decoder_sparse_step", 1},
                       {"mlp_only_layers", Json::array()},
                       {"tie_word_embeddings", false}});
    if (family == "mixtral")
        config.update({{"num_local_experts", 4}, {"num_experts_per_tok", 2}, {"tie_word_embeddings", false}});
    if (family == "gemma3_text") {
        config.update({{"num_hidden_layers", 3},
                       {"hidden_activation", "gelu_pytorch_tanh"},
                       {"query_pre_attn_scalar", 8},
                       {"sliding_window", 16},
                       {"sliding_window_pattern", 2}});
        config.erase("hidden_act");
    }
    if (family == "deepseek_v3") {
        config.update({{"num_key_value_heads", 4},
                       {"q_lora_rank", 24},
                       {"kv_lora_rank", 16},
                       {"qk_nope_head_dim", 8},
                       {"qk_rope_head_dim", 8},
                       {"v_head_dim", 8},
                       {"n_routed_experts", 4},
                       {"n_shared_experts", 1},
                       {"num_experts_per_tok", 2},
                       {"moe_intermediate_size", 32},
                       {"n_group", 1},
                       {"topk_group", 1},
                       {"norm_topk_prob", true},
                       {"routed_scaling_factor", 2.5},
                       {"first_k_dense_replace", 1},
                       {"tie_word_embeddings", false}});
        config.erase("head_dim");
    }
    if (family == "nemotron_h") {
        config.update({{"num_hidden_layers", 3},
                       {"hybrid_override_pattern", "ME*"},
                       {"moe_intermediate_size", 32},
                       {"moe_shared_expert_intermediate_size", 48},
                       {"n_routed_experts", 4},
                       {"n_shared_experts", 1},
                       {"num_experts_per_tok", 2},
                       {"n_group", 1},
                       {"topk_group", 1},
                       {"norm_topk_prob", true},
                       {"routed_scaling_factor", 2.5},
                       {"mamba_num_heads", 4},
                       {"mamba_head_dim", 8},
                       {"n_groups", 2},
                       {"ssm_state_size", 16},
                       {"conv_kernel", 4},
                       {"use_conv_bias", true},
                       {"use_bias", false},
                       {"mlp_bias", false},
                       {"attention_bias", false},
                       {"mamba_proj_bias", false},
                       {"mamba_hidden_act", "silu"},
                       {"mlp_hidden_act", "relu2"},
                       {"layer_norm_epsilon", 1e-5},
                       {"tie_word_embeddings", false}});
        for (const char* key : {"rms_norm_eps", "hidden_act", "rope_theta"}) config.erase(key);
    }
    return config;
}

}  // namespace nibble::test
