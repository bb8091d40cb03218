// phimoe: LayerNorm, biases of attention and head, two experts of a sparse mixer, longrope with the short factors.
#include "architecture/family.h"

namespace nibble {
namespace {

Result<ModelConfig> read_phimoe(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(const int64_t original, f.integer_or("original_max_position_embeddings", 0));
    NIBBLE_TRY(DenseModel d, read_dense(f, root, {.original_context = original, .only_short_factors = true}));
    ModelConfig& model = d.trunk.model;
    model.layer_norm = model.norm_bias = true;
    NIBBLE_TRY(model.head_bias, f.boolean_or("lm_head_bias", false));
    NIBBLE_TRY(d.attention.qkv_bias, f.boolean_or("attention_bias", false));
    d.attention.out_bias = d.attention.qkv_bias;
    NIBBLE_TRY(d.attention.window, f.integer_or("sliding_window", 0));
    f.ignore("input_jitter_noise");  // used in training only
    MoeConfig moe{.router = MoeConfig::Router::sparse_mixer};
    NIBBLE_CHECK(f.must_be("num_experts_per_tok", 2));  // transformers' sparse mixer always chooses two
    NIBBLE_CHECK(set_experts(f, moe, "num_local_experts", "num_experts_per_tok"));
    NIBBLE_TRY(const double jitter, f.number("router_jitter_noise", 0.0, 1.0));
    moe.jitter = static_cast<float>(jitter);
    moe.expert = d.mlp;
    moe.expert.gate_proj = "w1", moe.expert.up_proj = "w3", moe.expert.down_proj = "w2";
    for (int64_t l = 0; l < d.trunk.layers; ++l)
        add_layer(d.trunk, l, d.attention, moe).mlp.prefix = fmt::format("{}layers.{}.block_sparse_moe", root, l);
    return std::move(model);
}

}  // namespace

namespace family {

extern const Family phimoe{.model_type = "phimoe",
                           .defaults = R"({
        "vocab_size": 32064, "hidden_size": 4096, "intermediate_size": 6400, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_act": "silu", "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "num_experts_per_tok": 2, "num_local_experts": 16,
        "router_jitter_noise": 0.01, "attention_bias": false, "lm_head_bias": false, "rope_theta": 1000000.0})",
                           .describe = read_phimoe};

}  // namespace family
}  // namespace nibble
