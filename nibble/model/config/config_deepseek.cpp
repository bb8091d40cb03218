// deepseek_v3: latent attention, leading dense layers, then grouped sigmoid routing with a shared expert.
#include "model/config/config_families.h"
#include "model/config/config_rope.h"

#include <cmath>

namespace nibble {

Result<ModelConfig> read_deepseek_v3(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(Trunk t, read_trunk(f, root));
    NIBBLE_TRY(const MlpConfig mlp, read_mlp(f));
    LatentAttentionConfig a;
    NIBBLE_TRY(const int64_t heads, f.integer("num_attention_heads"));
    NIBBLE_TRY(const int64_t q_rank, f.integer_or("q_lora_rank", 0));
    NIBBLE_TRY(const int64_t kv_rank, f.integer("kv_lora_rank"));
    NIBBLE_TRY(const int64_t nope, f.integer("qk_nope_head_dim"));
    NIBBLE_TRY(const int64_t rope, f.integer("qk_rope_head_dim"));
    NIBBLE_TRY(const int64_t v_dim, f.integer("v_head_dim"));
    a.heads = static_cast<int>(heads), a.q_rank = static_cast<int>(q_rank), a.kv_rank = static_cast<int>(kv_rank);
    a.nope_dim = static_cast<int>(nope), a.v_dim = static_cast<int>(v_dim);
    a.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(nope + rope)));
    NIBBLE_TRY(a.bias, f.boolean_or("attention_bias", false));
    for (const char* key : {"num_key_value_heads", "head_dim", "qk_head_dim"}) f.ignore(key);  // follow from the others
    NIBBLE_TRY(a.rope, read_rope(f, rope, t.model.context, &a.scale));
    NIBBLE_TRY(a.rope.interleaved, f.boolean_or("rope_interleave", true));

    MoeConfig moe;
    moe.router = MoeConfig::Router::sigmoid;
    moe.selection_bias = true;
    NIBBLE_TRY(const int64_t experts, f.integer("n_routed_experts"));
    NIBBLE_TRY(const int64_t chosen, f.integer("num_experts_per_tok"));
    NIBBLE_TRY(const int64_t width, f.integer("moe_intermediate_size"));
    NIBBLE_TRY(const int64_t shared, f.integer_or("n_shared_experts", 0, 0));
    NIBBLE_TRY(const int64_t groups, f.integer("n_group"));
    NIBBLE_TRY(const int64_t kept, f.integer("topk_group"));
    NIBBLE_TRY(moe.normalize, f.boolean_or("norm_topk_prob", true));
    NIBBLE_TRY(const double scaling, f.number_or("routed_scaling_factor", 1.0));
    NIBBLE_CHECK(f.must_be("scoring_func", "sigmoid"));
    NIBBLE_CHECK(f.must_be("topk_method", "noaux_tc"));
    NIBBLE_CHECK(f.must_be("moe_layer_freq", 1));
    if (chosen > experts) return f.bad("num_experts_per_tok", "more than n_routed_experts");
    if (experts % groups != 0 || kept > groups)
        return f.bad("n_group", "does not divide the experts, or fewer than topk_group");
    moe.experts = static_cast<int>(experts), moe.top_k = static_cast<int>(chosen);
    moe.expert.intermediate = static_cast<int>(width);
    moe.shared.intermediate = static_cast<int>(width * shared);
    moe.groups = static_cast<int>(groups), moe.kept_groups = static_cast<int>(kept);
    moe.routed_scaling = static_cast<float>(scaling);

    NIBBLE_TRY(const int64_t dense, f.integer_or("first_k_dense_replace", 0, 0));
    NIBBLE_TRY(const int64_t predicting, f.integer_or("num_nextn_predict_layers", 0, 0));
    const auto layer = [&](int64_t l) { add_layer(t, root, l, a, l < dense ? MixerConfig(mlp) : MixerConfig(moe)); };
    for (int64_t l = 0; l < t.layers; ++l) layer(l);
    if (predicting > 0) {  // one more layer, and what joins its input
        const auto at = static_cast<ptrdiff_t>(t.model.blocks.size());
        layer(t.layers);
        const std::string base = fmt::format("{}layers.{}.", root, t.layers);
        t.model.prediction = PredictionConfig{.projection = base + "eh_proj",
                                              .embedding_norm = base + "enorm.weight",
                                              .hidden_norm = base + "hnorm.weight",
                                              .norm = base + "shared_head.norm.weight",
                                              .blocks = {t.model.blocks.begin() + at, t.model.blocks.end()}};
        t.model.blocks.resize(static_cast<size_t>(at));
    }
    return std::move(t.model);
}

}  // namespace nibble
