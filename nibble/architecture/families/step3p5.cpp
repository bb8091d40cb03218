// step3p5, the text part of step3p7: sliding and full layers with their own heads and rotary embeddings, a gate per
// head, norms times 1 + w, clamped units, experts with a sigmoid router and a shared expert.
#include "architecture/family.h"

#include <algorithm>

namespace nibble {
namespace {

// Bounds of every layer's units; none where a list says null or 0.
Result<std::vector<std::optional<ClampedGlu>>> read_limits(ConfigFields& f, const char* key, int64_t layers) {
    std::vector<std::optional<ClampedGlu>> limits(static_cast<size_t>(layers));
    const Json* list = f.find(key);
    if (!list) return limits;
    if (!list->is_array() || std::ssize(*list) < layers)
        return f.bad(key, fmt::format("expected a list of {} numbers or nulls", layers));
    for (size_t l = 0; l < limits.size(); ++l) {
        const Json& value = (*list)[l];
        if (value.is_null() || value == 0.0) continue;
        if (!value.is_number() || !(value.get<double>() > 0)) return f.bad(key, "expected positive numbers or nulls");
        limits[l] = ClampedGlu{.limit = value.get<float>(), .activation_first = true};
    }
    return limits;
}

Result<ModelConfig> read_step(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(Trunk t, read_trunk(f, root));
    t.model.norm_plus_one = true;
    NIBBLE_TRY(AttentionConfig full, read_heads(f, t.model.hidden));
    NIBBLE_TRY(MlpConfig mlp, read_mlp(f));
    NIBBLE_CHECK(read_biases(f, full, mlp));
    full.qk_norm = QkNorm::head;
    full.head_gate = "g_proj";
    if (f.has("query_pre_attn_scalar")) {
        NIBBLE_TRY(full.scale, read_score_scale(f));
    }
    AttentionConfig sliding = full;
    NIBBLE_TRY(const int64_t sliding_heads, f.integer_or("num_sliding_attention_heads", full.heads));
    if (sliding_heads % full.kv_heads != 0)
        return f.bad("num_sliding_attention_heads", "no multiple of num_key_value_heads");
    sliding.heads = static_cast<int>(sliding_heads);
    NIBBLE_TRY(sliding.window, f.integer_or("sliding_window", 0));
    NIBBLE_TRY(const LayerRopes ropes, read_layer_ropes(f, full.head_dim, t.model.context, {.partial = 1.0}));
    full.rope = ropes.full, sliding.rope = ropes.sliding;

    MoeConfig moe{.router = MoeConfig::Router::sigmoid,
                  .selection_bias = true,
                  .gate = "moe.gate",
                  .selection_bias_name = "moe.router_bias",
                  .experts_name = "moe.experts",
                  .shared_name = "share_expert"};
    NIBBLE_CHECK(set_experts(f, moe, "n_routed_experts", "num_experts_per_tok"));
    NIBBLE_TRY(const int64_t width, f.integer("moe_intermediate_size"));
    NIBBLE_TRY(const int64_t shared, f.integer("share_expert_dim"));
    NIBBLE_TRY(const double scaling, f.factor("moe_router_scaling_factor"));
    moe.routed_scaling = static_cast<float>(scaling);
    moe.expert.intermediate = static_cast<int>(width);
    moe.shared.intermediate = static_cast<int>(shared);
    moe.shared.bias = mlp.bias;
    NIBBLE_TRY(const auto limits, read_limits(f, "swiglu_limits", t.layers));
    NIBBLE_TRY(const auto shared_limits, read_limits(f, "swiglu_limits_shared", t.layers));
    NIBBLE_TRY(const auto slides, sliding_layers(f, t.layers, [](int64_t) { return false; }));
    NIBBLE_TRY(const auto kinds, f.strings("mlp_layer_types"));
    if (!kinds.empty() && std::ssize(kinds) != t.layers)
        return f.bad("mlp_layer_types", fmt::format("expected one per layer, {}", t.layers));
    // Follow from the fields above; the modules for prediction are left out.
    for (const char* key : {"per_layer_config", "mtp_layer_types", "mtp_mlp_layer_types", "num_nextn_predict_layers"})
        f.ignore(key);
    for (int64_t l = 0; l < t.layers; ++l) {
        const auto at = static_cast<size_t>(l);
        const bool sparse = kinds.empty() ? l >= 3 : kinds[at] == "sparse";
        if (!kinds.empty() && !sparse && kinds[at] != "dense")
            return f.bad("mlp_layer_types", "only dense and sparse are supported");
        moe.expert.clamp = limits[at];
        moe.shared.clamp = mlp.clamp = shared_limits[at];
        BlockConfig& block =
            add_layer(t, l, slides[at] ? sliding : full, sparse ? MixerConfig(moe) : MixerConfig(mlp)).mlp;
        if (sparse) block.prefix = fmt::format("{}layers.{}", root, l);
    }
    return std::move(t.model);
}

constexpr FieldSpelling step_spellings[] = {{"n_routed_experts", "num_local_experts"},
                                            {"n_routed_experts", "moe_num_experts"},
                                            {"num_key_value_heads", "num_attention_groups"},
                                            {"num_experts_per_tok", "moe_top_k"},
                                            {"share_expert_dim", "share_expert_dims"}};

}  // namespace

namespace family {

extern const Family step3p5{.model_type = "step3p5",
                            .defaults = R"({
        "vocab_size": 128815, "hidden_size": 4096, "intermediate_size": 11264, "num_hidden_layers": 45,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "hidden_act": "silu",
        "max_position_embeddings": 128000, "rms_norm_eps": 1e-05, "tie_word_embeddings": false,
        "num_experts_per_tok": 8, "moe_intermediate_size": 1280, "n_routed_experts": 288, "share_expert_dim": 1280,
        "attention_bias": false, "mlp_bias": false, "moe_router_scaling_factor": 1.0, "rope_theta": 10000.0,
        "rope_local_base_freq": 10000.0})",
                            .describe = read_step,
                            .spellings = step_spellings,
                            .multimodal = "step3p7",
                            .multimodal_root = "model."};

}  // namespace family
}  // namespace nibble
