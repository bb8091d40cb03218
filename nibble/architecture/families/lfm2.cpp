// lfm2 and lfm2_moe: short convolutions, and attention in some layers; lfm2_moe has experts with a sigmoid router after
// a few dense layers.
#include "architecture/config_rope.h"
#include "architecture/family.h"

#include <algorithm>

namespace nibble {
namespace {

// Returns whether each layer has attention: layer_types, or the older list full_attn_idxs.
Result<std::vector<bool>> read_attention_layers(ConfigFields& f, int64_t layers) {
    NIBBLE_TRY(auto attention, read_layer_kinds(f, "layer_types", layers, "full_attention", "conv"));
    NIBBLE_TRY(const auto indices, f.integers("full_attn_idxs"));
    const bool listed = f.has("full_attn_idxs");
    if (attention.empty())
        for (int64_t l = 0; l < layers; ++l) attention.push_back(!listed || std::ranges::count(indices, l) > 0);
    return attention;
}

// Returns the width of a dense MLP, which the model derives from intermediate_size or block_ff_dim.
Result<int64_t> read_dense_width(ConfigFields& f) {
    NIBBLE_TRY(const int64_t size, f.integer("intermediate_size"));
    NIBBLE_TRY(const int64_t width, f.integer_or("block_ff_dim", size));
    NIBBLE_TRY(const bool adjusted, f.boolean_or("block_auto_adjust_ff_dim", false));
    NIBBLE_TRY(const double factor, f.factor_or("block_ffn_dim_multiplier", 1.0));
    NIBBLE_TRY(const int64_t multiple, f.integer_or("block_multiple_of", 1));
    if (!adjusted) return width;
    const auto scaled = static_cast<int64_t>(factor * static_cast<double>(2 * width / 3));
    return (scaled + multiple - 1) / multiple * multiple;
}

Result<MoeConfig> read_experts(ConfigFields& f) {
    MoeConfig moe{.router = MoeConfig::Router::sigmoid, .smallest_sum = 1e-6f, .selection_bias_name = "expert_bias"};
    NIBBLE_CHECK(set_experts(f, moe, "num_experts", "num_experts_per_tok"));
    NIBBLE_TRY(const int64_t width, f.integer("moe_intermediate_size"));
    NIBBLE_TRY(moe.normalize, f.boolean_or("norm_topk_prob", true));
    NIBBLE_TRY(moe.selection_bias, f.boolean_or("use_expert_bias", true));
    NIBBLE_TRY(const double scaling, f.factor_or("routed_scaling_factor", 1.0));
    moe.routed_scaling = static_cast<float>(scaling);
    moe.expert.intermediate = static_cast<int>(width);
    return moe;
}

Result<ModelConfig> read_lfm(ConfigFields& f, const std::string& root, bool experts) {
    NIBBLE_TRY(Trunk t, read_trunk(f, root, "norm_eps"));
    t.model.norm = root + "embedding_norm.weight";
    NIBBLE_TRY(AttentionConfig a, read_heads(f, t.model.hidden));
    NIBBLE_TRY(a.rope, read_rope(f, a.head_dim, t.model.context));
    a.qk_norm = QkNorm::head;
    a.o_proj = "out_proj", a.q_norm = "q_layernorm", a.k_norm = "k_layernorm";
    NIBBLE_TRY(const int64_t taps, f.integer("conv_L_cache"));
    ShortConvConfig conv{.taps = static_cast<int>(taps)};
    NIBBLE_TRY(conv.bias, f.boolean_or("conv_bias", false));
    NIBBLE_TRY(const auto attention, read_attention_layers(f, t.layers));
    MlpConfig mlp;
    NIBBLE_TRY(const int64_t width, read_dense_width(f));
    mlp.intermediate = static_cast<int>(width);
    int64_t dense = t.layers;
    MoeConfig moe;
    if (experts) {
        NIBBLE_TRY(dense, f.integer_or("num_dense_layers", 0, 0));
        NIBBLE_TRY(moe, read_experts(f));
    }
    for (MlpConfig* m : {&mlp, &moe.expert}) m->gate_proj = "w1", m->up_proj = "w3", m->down_proj = "w2";
    NIBBLE_CHECK(f.must_be("block_use_swiglu", true));
    NIBBLE_CHECK(f.must_be("use_pos_enc", true));
    // Initial values of training, and second names of sizes.
    for (const char* key : {"block_dim", "conv_dim", "conv_dim_out", "block_mlp_init_scale", "block_out_init_scale",
                            "block_use_xavier_init", "conv_use_xavier_init", "block_norm_eps", "num_heads"})
        f.ignore(key);
    for (int64_t l = 0; l < t.layers; ++l) {
        const bool attends = attention[static_cast<size_t>(l)];
        const LayerBlocks blocks = add_layer(t, l, attends ? MixerConfig(a) : MixerConfig(conv),
                                             l < dense ? MixerConfig(mlp) : MixerConfig(moe));
        const std::string base = fmt::format("{}layers.{}.", root, l);
        if (!attends) blocks.attention.prefix = base + "conv";
        blocks.mlp.prefix = base + "feed_forward";
        blocks.attention.norm = base + "operator_norm.weight";
        blocks.mlp.norm = base + "ffn_norm.weight";
    }
    return std::move(t.model);
}

Result<ModelConfig> read_lfm2(ConfigFields& f, const std::string& root) { return read_lfm(f, root, false); }
Result<ModelConfig> read_lfm2_moe(ConfigFields& f, const std::string& root) { return read_lfm(f, root, true); }

constexpr FieldSpelling lfm2_spellings[] = {{"tie_word_embeddings", "tie_embedding"}};

}  // namespace

namespace family {

extern const Family lfm2{.model_type = "lfm2",
                         .defaults = R"({
        "vocab_size": 65536, "hidden_size": 2560, "intermediate_size": 12288, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 128000, "norm_eps": 1e-05,
        "tie_word_embeddings": true, "conv_bias": false, "conv_L_cache": 3, "block_multiple_of": 256,
        "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": true, "rope_theta": 1000000.0})",
                         .describe = read_lfm2,
                         .spellings = lfm2_spellings};

extern const Family lfm2_moe{.model_type = "lfm2_moe",
                             .defaults = R"({
        "vocab_size": 65536, "hidden_size": 2048, "intermediate_size": 7168, "moe_intermediate_size": 1792,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "max_position_embeddings": 128000, "norm_eps": 1e-05, "tie_word_embeddings": true, "conv_bias": false,
        "conv_L_cache": 3, "num_dense_layers": 2, "num_experts_per_tok": 4, "num_experts": 32,
        "use_expert_bias": true, "routed_scaling_factor": 1.0, "norm_topk_prob": true, "rope_theta": 1000000.0})",
                             .describe = read_lfm2_moe,
                             .spellings = lfm2_spellings};

}  // namespace family
}  // namespace nibble
