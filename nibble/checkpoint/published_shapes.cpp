#include "checkpoint/published_shapes.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>

namespace nibble {
namespace {

constexpr std::array<std::string_view, 11> published_shapes{
    "smollm2-135m",    "llama-8b",    "qwen3-8b",     "qwen3-30b-a3b",   "qwen3.5-35b-a3b", "qwen3.6-27b",
    "nemotron-3-nano", "gpt-oss-20b", "gpt-oss-120b", "gemma-4-26b-a4b", "glm-4.7-flash"};

// Returns the sizes of Qwen3.5 and Qwen3.6 that do not belong to the feed-forward network.
Json gated_delta_config(std::string_view type, int64_t hidden, int layers, int heads, int kv_heads, int value_heads) {
    return {{"model_type", type},
            {"hidden_size", hidden},
            {"num_hidden_layers", layers},
            {"num_attention_heads", heads},
            {"num_key_value_heads", kv_heads},
            {"head_dim", 256},
            {"full_attention_interval", 4},
            {"linear_num_key_heads", 16},
            {"linear_num_value_heads", value_heads},
            {"linear_key_head_dim", 128},
            {"linear_value_head_dim", 128},
            {"linear_conv_kernel_dim", 4},
            {"vocab_size", 248320},
            {"rms_norm_eps", 1e-6},
            {"rope_theta", 10000000.0},
            {"partial_rotary_factor", 0.25},
            {"tie_word_embeddings", false},
            {"max_position_embeddings", 262144},
            {"hidden_act", "silu"}};
}

Json config_of(std::string_view shape) {
    if (shape == "smollm2-135m")
        return {{"model_type", "llama"},     {"hidden_size", 576},          {"num_hidden_layers", 30},
                {"num_attention_heads", 9},  {"num_key_value_heads", 3},    {"head_dim", 64},
                {"intermediate_size", 1536}, {"vocab_size", 49152},         {"rms_norm_eps", 1e-5},
                {"rope_theta", 100000.0},    {"tie_word_embeddings", true}, {"max_position_embeddings", 8192},
                {"hidden_act", "silu"}};
    if (shape == "llama-8b")
        return {{"model_type", "llama"},      {"hidden_size", 4096},          {"num_hidden_layers", 32},
                {"num_attention_heads", 32},  {"num_key_value_heads", 8},     {"head_dim", 128},
                {"intermediate_size", 14336}, {"vocab_size", 128256},         {"rms_norm_eps", 1e-5},
                {"rope_theta", 500000.0},     {"tie_word_embeddings", false}, {"max_position_embeddings", 131072},
                {"hidden_act", "silu"}};
    if (shape == "qwen3-8b")
        return {{"model_type", "qwen3"},      {"hidden_size", 4096},          {"num_hidden_layers", 36},
                {"num_attention_heads", 32},  {"num_key_value_heads", 8},     {"head_dim", 128},
                {"intermediate_size", 12288}, {"vocab_size", 151936},         {"rms_norm_eps", 1e-6},
                {"rope_theta", 1000000.0},    {"tie_word_embeddings", false}, {"max_position_embeddings", 40960},
                {"hidden_act", "silu"}};
    if (shape == "qwen3-30b-a3b")
        return {{"model_type", "qwen3_moe"},
                {"hidden_size", 2048},
                {"num_hidden_layers", 48},
                {"num_attention_heads", 32},
                {"num_key_value_heads", 4},
                {"head_dim", 128},
                {"intermediate_size", 6144},
                {"vocab_size", 151936},
                {"rms_norm_eps", 1e-6},
                {"rope_theta", 1000000.0},
                {"tie_word_embeddings", false},
                {"max_position_embeddings", 40960},
                {"hidden_act", "silu"},
                {"num_experts", 128},
                {"num_experts_per_tok", 8},
                {"moe_intermediate_size", 768},
                {"norm_topk_prob", true},
                {"decoder_sparse_step", 1},
                {"mlp_only_layers", Json::array()}};
    if (shape == "qwen3.5-35b-a3b") {
        Json config = gated_delta_config("qwen3_5_moe_text", 2048, 40, 16, 2, 32);
        config.update({{"num_experts", 256},
                       {"num_experts_per_tok", 8},
                       {"moe_intermediate_size", 512},
                       {"shared_expert_intermediate_size", 512}});
        return config;
    }
    if (shape == "qwen3.6-27b") {
        Json config = gated_delta_config("qwen3_5_text", 5120, 64, 24, 4, 48);
        config["intermediate_size"] = 17408;
        return config;
    }
    if (shape == "gpt-oss-20b" || shape == "gpt-oss-120b") {
        const bool large = shape == "gpt-oss-120b";
        return {{"model_type", "gpt_oss"},
                {"hidden_size", 2880},
                {"num_hidden_layers", large ? 36 : 24},
                {"num_attention_heads", 64},
                {"num_key_value_heads", 8},
                {"head_dim", 64},
                {"intermediate_size", 2880},
                {"num_local_experts", large ? 128 : 32},
                {"num_experts_per_tok", 4},
                {"sliding_window", 128},
                {"vocab_size", 201088},
                {"rms_norm_eps", 1e-5},
                {"tie_word_embeddings", false},
                {"max_position_embeddings", 131072}};
    }
    if (shape == "glm-4.7-flash")
        return {{"model_type", "glm4_moe_lite"}, {"hidden_size", 2048},
                {"num_hidden_layers", 47},       {"num_attention_heads", 20},
                {"num_key_value_heads", 20},     {"q_lora_rank", 768},
                {"kv_lora_rank", 512},           {"qk_nope_head_dim", 192},
                {"qk_rope_head_dim", 64},        {"v_head_dim", 256},
                {"intermediate_size", 10240},    {"moe_intermediate_size", 1536},
                {"n_routed_experts", 64},        {"n_shared_experts", 1},
                {"num_experts_per_tok", 4},      {"routed_scaling_factor", 1.8},
                {"vocab_size", 154880},          {"rms_norm_eps", 1e-5},
                {"tie_word_embeddings", false},  {"max_position_embeddings", 202752}};
    if (shape == "gemma-4-26b-a4b")
        return {{"model_type", "gemma4_text"},
                {"hidden_size", 2816},
                {"num_hidden_layers", 30},
                {"num_attention_heads", 16},
                {"num_key_value_heads", 8},
                {"head_dim", 256},
                {"global_head_dim", 512},
                {"num_global_key_value_heads", 2},
                {"attention_k_eq_v", true},
                {"intermediate_size", 2112},
                {"enable_moe_block", true},
                {"num_experts", 128},
                {"top_k_experts", 8},
                {"moe_intermediate_size", 704},
                {"hidden_size_per_layer_input", 0},
                {"sliding_window", 1024},
                {"final_logit_softcapping", 30.0},
                {"vocab_size", 262144},
                {"rms_norm_eps", 1e-6},
                {"tie_word_embeddings", true},
                {"max_position_embeddings", 262144}};
    return {{"model_type", "nemotron_h"},
            {"hidden_size", 2688},
            {"num_hidden_layers", 52},
            {"hybrid_override_pattern", "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"},
            {"num_attention_heads", 32},
            {"num_key_value_heads", 2},
            {"head_dim", 128},
            {"intermediate_size", 1856},
            {"moe_intermediate_size", 1856},
            {"moe_shared_expert_intermediate_size", 3712},
            {"n_routed_experts", 128},
            {"n_shared_experts", 1},
            {"num_experts_per_tok", 6},
            {"n_group", 1},
            {"topk_group", 1},
            {"norm_topk_prob", true},
            {"routed_scaling_factor", 2.5},
            {"mamba_num_heads", 64},
            {"mamba_head_dim", 64},
            {"n_groups", 8},
            {"ssm_state_size", 128},
            {"conv_kernel", 4},
            {"use_conv_bias", true},
            {"use_bias", false},
            {"mlp_bias", false},
            {"attention_bias", false},
            {"mamba_proj_bias", false},
            {"mamba_hidden_act", "silu"},
            {"mlp_hidden_act", "relu2"},
            {"vocab_size", 131072},
            {"layer_norm_epsilon", 1e-5},
            {"tie_word_embeddings", false},
            {"max_position_embeddings", 262144}};
}

}  // namespace

Result<Json> shape_config(std::string_view shape) {
    if (std::ranges::find(published_shapes, shape) == published_shapes.end())
        return fail("unknown shape '{}'; choices: {}", shape, fmt::join(published_shapes, ", "));
    return config_of(shape);
}

}  // namespace nibble
