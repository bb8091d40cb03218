// glm4_moe: attention with a rotary embedding of half of each head and with biases of q, k and v; a few dense layers,
// then deepseek_v3's experts; one layer for multi-token prediction.
#include "architecture/family.h"

namespace nibble {
namespace {

Result<ModelConfig> read_glm4_moe(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(DenseModel d, read_dense(f, root, {.partial = 0.5}));
    NIBBLE_TRY(d.attention.qkv_bias, f.boolean_or("attention_bias", false));
    NIBBLE_TRY(const bool normed, f.boolean_or("use_qk_norm", false));
    if (normed) d.attention.qk_norm = QkNorm::head;
    NIBBLE_TRY(const MoeConfig moe, read_grouped_experts(f));
    NIBBLE_TRY(const int64_t dense, f.integer_or("first_k_dense_replace", 1, 0));
    NIBBLE_TRY(const int64_t predicting, f.integer_or("num_nextn_predict_layers", 0, 0));
    for (int64_t l = 0; l < d.trunk.layers + (predicting > 0); ++l)
        add_layer(d.trunk, l, d.attention, l < dense ? MixerConfig(d.mlp) : MixerConfig(moe));
    if (predicting > 0) make_prediction_layer(d.trunk);
    return std::move(d.trunk.model);
}

constexpr FieldSpelling glm4_moe_spellings[] = {{"n_routed_experts", "num_local_experts"},
                                                {"num_nextn_predict_layers", "num_mtp_layers"}};

}  // namespace

namespace family {

extern const Family glm4_moe{.model_type = "glm4_moe",
                             .defaults = R"({
        "vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 10944, "num_hidden_layers": 46,
        "num_attention_heads": 96, "num_key_value_heads": 8, "hidden_act": "silu", "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "attention_bias": false, "moe_intermediate_size": 1408,
        "num_experts_per_tok": 8, "n_shared_experts": 1, "n_routed_experts": 128, "routed_scaling_factor": 1.0,
        "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "norm_topk_prob": true, "use_qk_norm": false,
        "rope_theta": 10000.0, "partial_rotary_factor": 0.5})",
                             .describe = read_glm4_moe,
                             .spellings = glm4_moe_spellings,
                             .gguf = "glm4moe"};

}  // namespace family
}  // namespace nibble
