// deepseek_v3, kimi_k2 and glm4_moe_lite: latent attention; a few dense layers first, then grouped sigmoid routing with
// a shared expert.
#include "architecture/config_rope.h"
#include "architecture/family.h"

namespace nibble {
namespace {

Result<LatentAttentionConfig> read_latent_attention(ConfigFields& f, int64_t context) {
    NIBBLE_TRY(LatentAttentionConfig a, read_latent_heads(f));
    NIBBLE_TRY(a.rope, read_rope(f, a.rope.dims, context, {.scale = &a.scale}));
    NIBBLE_TRY(a.rope.interleaved, f.boolean_or("rope_interleave", true));
    return a;
}

Result<ModelConfig> read_deepseek_v3(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(Trunk t, read_trunk(f, root));
    NIBBLE_TRY(const int64_t dense, f.integer_or("first_k_dense_replace", 0, 0));
    return read_latent_model(f, std::move(t), [&](int64_t l) { return l < dense; });
}

Result<ModelConfig> read_glm4_moe_lite(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(Trunk t, read_trunk(f, root));
    NIBBLE_TRY(const auto dense, read_dense_layers(f, t.layers));
    return read_latent_model(f, std::move(t), [&](int64_t l) { return dense[static_cast<size_t>(l)]; });
}

constexpr FieldSpelling deepseek_v3_spellings[] = {{"n_routed_experts", "num_local_experts"},
                                                   {"num_nextn_predict_layers", "num_mtp_layers"}};

}  // namespace

Result<ModelConfig> read_latent_model(ConfigFields& f, Trunk t, const std::function<bool(int64_t layer)>& dense,
                                      const AttentionOfLayer& attention_of) {
    NIBBLE_TRY(const MlpConfig mlp, read_mlp(f));
    NIBBLE_TRY(const LatentAttentionConfig a, read_latent_attention(f, t.model.context));
    NIBBLE_TRY(const MoeConfig moe, read_grouped_experts(f));
    NIBBLE_CHECK(f.must_be("scoring_func", "sigmoid"));
    NIBBLE_CHECK(f.must_be("topk_method", "noaux_tc"));
    NIBBLE_CHECK(f.must_be("moe_layer_freq", 1));
    NIBBLE_TRY(const int64_t predicting, f.integer_or("num_nextn_predict_layers", 0, 0));
    for (int64_t l = 0; l < t.layers + (predicting > 0); ++l)
        add_layer(t, l, attention_of ? attention_of(l, a) : a, dense(l) ? MixerConfig(mlp) : MixerConfig(moe));
    if (predicting > 0) make_prediction_layer(t);
    return std::move(t.model);
}

Result<std::vector<bool>> read_dense_layers(ConfigFields& f, int64_t layers) {
    NIBBLE_TRY(auto dense, read_layer_kinds(f, "mlp_layer_types", layers, "dense", "sparse"));
    NIBBLE_TRY(const int64_t leading, f.integer_or("first_k_dense_replace", 1, 0));
    if (dense.empty())
        for (int64_t l = 0; l < layers; ++l) dense.push_back(l < leading);
    dense.push_back(false);  // the layer for prediction
    return dense;
}

namespace family {

constexpr std::string_view deepseek_v3_defaults = R"({
        "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
        "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "n_shared_experts": 1,
        "n_routed_experts": 256, "routed_scaling_factor": 2.5, "kv_lora_rank": 512, "q_lora_rank": 1536,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128, "n_group": 8, "topk_group": 4,
        "num_experts_per_tok": 8, "first_k_dense_replace": 3, "norm_topk_prob": true, "hidden_act": "silu",
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-06, "tie_word_embeddings": false,
        "rope_interleave": true, "attention_bias": false, "rope_theta": 10000.0})";

extern const Family deepseek_v3{.model_type = "deepseek_v3",
                                .defaults = deepseek_v3_defaults,
                                .describe = read_deepseek_v3,
                                .spellings = deepseek_v3_spellings};

extern const Family kimi_k2{.model_type = "kimi_k2",
                            .defaults = deepseek_v3_defaults,
                            .describe = read_deepseek_v3,
                            .spellings = deepseek_v3_spellings};

extern const Family glm4_moe_lite{.model_type = "glm4_moe_lite",
                                  .defaults = R"({
        "vocab_size": 154880, "hidden_size": 2048, "intermediate_size": 10240, "moe_intermediate_size": 1536,
        "num_hidden_layers": 47, "num_attention_heads": 20, "num_key_value_heads": 20, "n_shared_experts": 1,
        "n_routed_experts": 64, "routed_scaling_factor": 1.8, "kv_lora_rank": 512, "q_lora_rank": 768,
        "qk_rope_head_dim": 64, "v_head_dim": 256, "qk_nope_head_dim": 192, "n_group": 1, "topk_group": 1,
        "num_experts_per_tok": 4, "norm_topk_prob": true, "hidden_act": "silu", "max_position_embeddings": 202752,
        "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "rope_interleave": true, "attention_bias": false,
        "rope_theta": 10000.0})",
                                  .describe = read_glm4_moe_lite,
                                  .spellings = deepseek_v3_spellings};

}  // namespace family
}  // namespace nibble
