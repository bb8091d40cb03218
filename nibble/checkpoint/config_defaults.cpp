// Defaults of transformers' configuration classes (5.23) for fields that config.json leaves out.
// tests/peers/test_config_defaults.py compares this table with the classes. Not here: ids of tokens (facts of the
// tokenizer), prediction layers (the file has them or not), and fields that the forward pass does not read.
#include "checkpoint/canonical_config.h"

#include <array>
#include <utility>

namespace nibble {
namespace {

constexpr std::array family_defaults{std::pair<std::string_view, std::string_view>{"llama", R"({
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-06,
        "tie_word_embeddings": false, "attention_bias": false, "mlp_bias": false, "rope_theta": 10000.0})"},
                                     std::pair<std::string_view, std::string_view>{"mistral", R"({
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_act": "silu", "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "sliding_window": 4096, "rope_theta": 10000.0})"},
                                     std::pair<std::string_view, std::string_view>{"mixtral", R"({
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_act": "silu", "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "num_experts_per_tok": 2, "num_local_experts": 8,
        "rope_theta": 1000000.0})"},
                                     std::pair<std::string_view, std::string_view>{"qwen2", R"({
        "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "hidden_act": "silu", "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "use_sliding_window": false, "sliding_window": 4096,
        "max_window_layers": 28, "rope_theta": 10000.0})"},
                                     std::pair<std::string_view, std::string_view>{"qwen3", R"({
        "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128, "hidden_act": "silu",
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-06, "tie_word_embeddings": false,
        "attention_bias": false, "use_sliding_window": false, "sliding_window": 4096, "max_window_layers": 28,
        "rope_theta": 10000.0})"},
                                     std::pair<std::string_view, std::string_view>{"qwen3_moe", R"({
        "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24,
        "num_attention_heads": 32, "num_key_value_heads": 4, "hidden_act": "silu", "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "attention_bias": false, "use_sliding_window": false,
        "sliding_window": 4096, "decoder_sparse_step": 1, "moe_intermediate_size": 768, "num_experts_per_tok": 8,
        "num_local_experts": 128, "norm_topk_prob": false, "rope_theta": 10000.0})"},
                                     std::pair<std::string_view, std::string_view>{"gemma3_text", R"({
        "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 131072, "rms_norm_eps": 1e-06,
        "tie_word_embeddings": true, "attention_bias": false, "query_pre_attn_scalar": 256, "sliding_window": 4096,
        "use_bidirectional_attention": false, "sliding_window_pattern": 6, "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0})"},
                                     std::pair<std::string_view, std::string_view>{"deepseek_v3", R"({
        "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
        "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "n_shared_experts": 1,
        "n_routed_experts": 256, "routed_scaling_factor": 2.5, "kv_lora_rank": 512, "q_lora_rank": 1536,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128, "n_group": 8, "topk_group": 4,
        "num_experts_per_tok": 8, "first_k_dense_replace": 3, "norm_topk_prob": true, "hidden_act": "silu",
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-06, "tie_word_embeddings": false,
        "rope_interleave": true, "attention_bias": false, "rope_theta": 10000.0})"},
                                     std::pair<std::string_view, std::string_view>{"nemotron_h", R"({
        "vocab_size": 131072, "hidden_size": 4096, "tie_word_embeddings": false, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 4096, "attention_bias": false,
        "intermediate_size": 21504, "mlp_hidden_act": "relu2", "mlp_bias": false, "ssm_state_size": 128,
        "mamba_num_heads": 128, "mamba_head_dim": 64, "mamba_hidden_act": "silu", "n_groups": 8, "conv_kernel": 4,
        "time_step_limit": [0.0, Infinity], "use_conv_bias": true, "mamba_proj_bias": false, "n_routed_experts": 8,
        "n_shared_experts": 1, "moe_intermediate_size": 7688, "moe_shared_expert_intermediate_size": 7688,
        "num_experts_per_tok": 2, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1,
        "norm_topk_prob": true, "use_bias": false, "layer_norm_epsilon": 1e-05,
        "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"]})"}};

}  // namespace

Json config_defaults(std::string_view model_type) {
    for (const auto& [family, text] : family_defaults)
        if (family == model_type) return *parse_json(text, {.python_constants = true});
    return nullptr;
}

}  // namespace nibble
