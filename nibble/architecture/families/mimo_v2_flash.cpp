// mimo_v2_flash: five sliding layers to a full one, each kind with its own heads and rotary embedding; values are
// narrower than keys and scaled, sliding layers have sinks, and all layers but the first have deepseek_v3's experts.
#include "architecture/family.h"

namespace nibble {
namespace {

// A list of numbers, 1 for yes, or of kinds.
Result<std::vector<bool>> read_pattern(ConfigFields& f, const char* kinds_key, std::string_view yes,
                                       std::string_view no, const char* numbers_key, int64_t layers,
                                       const std::function<bool(int64_t)>& otherwise) {
    NIBBLE_TRY(const auto kinds, f.strings(kinds_key));
    NIBBLE_TRY(const auto numbers, f.integers(numbers_key));
    std::vector<bool> is;
    for (const std::string& kind : kinds) {
        if (kind != yes && kind != no) return f.bad(kinds_key, fmt::format("only {} and {} are supported", yes, no));
        is.push_back(kind == yes);
    }
    if (kinds.empty())
        for (const int64_t n : numbers) is.push_back(n == 1);
    if (is.empty())
        for (int64_t l = 0; l < layers; ++l) is.push_back(otherwise(l));
    if (std::ssize(is) != layers)
        return f.bad(kinds.empty() ? numbers_key : kinds_key, fmt::format("expected one per layer, {}", layers));
    return is;
}

Result<ModelConfig> read_mimo(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(Trunk t, read_trunk(f, root));
    NIBBLE_TRY(AttentionConfig full, read_heads(f, t.model.hidden));
    NIBBLE_TRY(MlpConfig mlp, read_mlp(f));
    NIBBLE_TRY(full.qkv_bias, f.boolean_or("attention_bias", false));  // o_proj has none
    NIBBLE_CHECK(f.must_be("mlp_bias", false));
    NIBBLE_TRY(const int64_t v_dim, f.integer("v_head_dim"));
    NIBBLE_TRY(const double value_scale, f.factor_or("attention_value_scale", 1.0));
    full.v_dim = static_cast<int>(v_dim);
    full.value_scale = static_cast<float>(value_scale);
    AttentionConfig sliding = full;
    NIBBLE_CHECK(f.must_be("swa_num_attention_heads", full.heads));
    NIBBLE_CHECK(f.must_be("swa_head_dim", full.head_dim));
    NIBBLE_CHECK(f.must_be("swa_v_head_dim", full.v_dim));
    NIBBLE_CHECK(f.must_be("add_swa_attention_sink_bias", true));
    NIBBLE_CHECK(f.must_be("add_full_attention_sink_bias", false));
    NIBBLE_CHECK(f.must_be("scoring_func", "sigmoid"));
    NIBBLE_CHECK(f.must_be("topk_method", "noaux_tc"));
    for (const char* key : {"attention_chunk_size", "hybrid_block_size"}) f.ignore(key);  // read by no modeling file
    NIBBLE_TRY(const int64_t kv_heads, f.integer_or("swa_num_key_value_heads", 2 * int64_t{full.kv_heads}));
    if (full.heads % kv_heads != 0) return f.bad("swa_num_key_value_heads", "does not divide num_attention_heads");
    sliding.kv_heads = static_cast<int>(kv_heads);
    sliding.sinks = "attention_sink_bias";
    NIBBLE_TRY(sliding.window, f.integer("sliding_window"));
    if (f.has("sliding_window_size")) {  // keys before the query's own
        NIBBLE_TRY(const int64_t before, f.integer("sliding_window_size"));
        sliding.window = before + 1;
    }
    NIBBLE_TRY(const LayerRopes ropes, read_layer_ropes(f, full.head_dim, t.model.context, {.partial = 0.334}));
    full.rope = ropes.full, sliding.rope = ropes.sliding;
    NIBBLE_TRY(const MoeConfig moe, read_grouped_experts(f));
    NIBBLE_TRY(const auto slides,
               read_pattern(f, "layer_types", "sliding_attention", "full_attention", "hybrid_layer_pattern", t.layers,
                            [](int64_t l) { return l != 0 && (l + 1) % 6 != 0; }));
    NIBBLE_TRY(const auto sparse, read_pattern(f, "mlp_layer_types", "sparse", "dense", "moe_layer_freq", t.layers,
                                               [](int64_t l) { return l != 0; }));
    for (int64_t l = 0; l < t.layers; ++l) {
        const auto at = static_cast<size_t>(l);
        add_layer(t, l, slides[at] ? sliding : full, sparse[at] ? MixerConfig(moe) : MixerConfig(mlp));
    }
    return std::move(t.model);
}

constexpr FieldSpelling mimo_spellings[] = {{"n_routed_experts", "num_local_experts"},
                                            {"rms_norm_eps", "layernorm_epsilon"},
                                            {"rope_local_base_freq", "swa_rope_theta"}};

}  // namespace

namespace family {

extern const Family mimo_v2_flash{.model_type = "mimo_v2_flash",
                                  .defaults = R"({
        "vocab_size": 152576, "hidden_size": 4096, "intermediate_size": 16384, "num_hidden_layers": 48,
        "num_attention_heads": 64, "num_key_value_heads": 4, "hidden_act": "silu", "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "attention_bias": false, "moe_intermediate_size": 2048,
        "num_experts_per_tok": 8, "n_routed_experts": 256, "routed_scaling_factor": 1.0, "n_group": 1,
        "topk_group": 1, "norm_topk_prob": true, "head_dim": 192, "v_head_dim": 128, "sliding_window": 129,
        "attention_value_scale": 0.707, "rope_theta": 5000000.0, "rope_local_base_freq": 10000.0,
        "partial_rotary_factor": 0.334})",
                                  .describe = read_mimo,
                                  .spellings = mimo_spellings};

}  // namespace family
}  // namespace nibble
