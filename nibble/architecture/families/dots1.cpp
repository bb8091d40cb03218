// dots1: qwen3's attention with deepseek_v3's experts.
#include "architecture/family.h"

namespace nibble {
namespace {

Result<ModelConfig> read_dots1(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(DenseModel d, read_dense(f, root));
    NIBBLE_CHECK(read_biases(f, d.attention, d.mlp));
    d.attention.qk_norm = QkNorm::head;
    NIBBLE_TRY(const MoeConfig moe, read_grouped_experts(f));
    NIBBLE_TRY(const int64_t dense, f.integer_or("first_k_dense_replace", 0, 0));
    NIBBLE_TRY(const int64_t window, f.integer_or("sliding_window", 0));
    NIBBLE_TRY(const int64_t from, f.integer_or("max_window_layers", 62, 0));
    NIBBLE_TRY(const auto slides,
               sliding_layers(f, d.trunk.layers, [&](int64_t l) { return window > 0 && l >= from; }));
    NIBBLE_CHECK(f.must_be("moe_layer_freq", 1));
    f.ignore("scoring_func");  // published as "noaux_tc"; the router has sigmoid scores
    for (int64_t l = 0; l < d.trunk.layers; ++l) {
        const bool slide = slides[static_cast<size_t>(l)];
        if (slide && window == 0) return f.bad("layer_types", "sliding_attention without a sliding_window");
        d.attention.window = slide ? window : 0;
        add_layer(d.trunk, l, d.attention, l < dense ? MixerConfig(d.mlp) : MixerConfig(moe));
    }
    return std::move(d.trunk.model);
}

constexpr FieldSpelling dots1_spellings[] = {{"n_routed_experts", "num_local_experts"}};

}  // namespace

namespace family {

extern const Family dots1{.model_type = "dots1",
                          .defaults = R"({
        "vocab_size": 152064, "hidden_size": 4608, "intermediate_size": 10944, "moe_intermediate_size": 1408,
        "num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 32, "n_group": 1, "topk_group": 1,
        "first_k_dense_replace": 0, "norm_topk_prob": false, "hidden_act": "silu", "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "attention_bias": false, "routed_scaling_factor": 1.0,
        "sliding_window": 4096, "max_window_layers": 62, "rope_theta": 10000.0})",
                          .describe = read_dots1,
                          .spellings = dots1_spellings,
                          .gguf = "dots1"};

}  // namespace family
}  // namespace nibble
