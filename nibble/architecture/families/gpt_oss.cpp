// gpt_oss: every second layer slides, all have sinks; experts with biases and a clamped unit, whose gate and up rows
// alternate in stacks.
#include "architecture/family.h"

namespace nibble {
namespace {

Result<ModelConfig> read_gpt_oss(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(DenseModel d, read_dense(f, root));
    if (d.attention.rope.scaling != Rope::Scaling::yarn)
        return f.bad("rope_parameters", "only a rotary embedding of type yarn is supported");
    NIBBLE_TRY(d.attention.qkv_bias, f.boolean_or("attention_bias", true));
    d.attention.out_bias = d.attention.qkv_bias;
    d.attention.sinks = "sinks";
    NIBBLE_TRY(const double alpha, f.factor("swiglu_alpha"));
    NIBBLE_TRY(const double limit, f.factor("swiglu_limit"));
    MoeConfig moe{.gate_bias = true, .stacked = true, .gate = "router"};
    NIBBLE_CHECK(set_experts(f, moe, "num_local_experts", "num_experts_per_tok"));
    moe.expert = d.mlp;
    moe.expert.bias = true;
    moe.expert.clamp =
        ClampedGlu{.limit = static_cast<float>(limit), .alpha = static_cast<float>(alpha), .up_offset = 1.0f};
    f.ignore("initial_context_length");  // original_max_position_embeddings of rope_parameters
    NIBBLE_TRY(const int64_t window, f.integer_or("sliding_window", 0));
    NIBBLE_TRY(const auto slides, sliding_layers(f, d.trunk.layers, [](int64_t l) { return l % 2 == 0; }));
    for (int64_t l = 0; l < d.trunk.layers; ++l) {
        d.attention.window = slides[static_cast<size_t>(l)] ? window : 0;
        add_layer(d.trunk, l, d.attention, moe);
    }
    return std::move(d.trunk.model);
}

constexpr FieldSpelling gpt_oss_spellings[] = {{"num_local_experts", "num_experts"},
                                               {"num_experts_per_tok", "experts_per_token"}};

}  // namespace

namespace family {

extern const Family gpt_oss{.model_type = "gpt_oss",
                            .defaults = R"({
        "num_hidden_layers": 36, "num_local_experts": 128, "vocab_size": 201088, "hidden_size": 2880,
        "intermediate_size": 2880, "head_dim": 64, "num_attention_heads": 64, "num_key_value_heads": 8,
        "sliding_window": 128, "tie_word_embeddings": false, "hidden_act": "silu", "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-05, "num_experts_per_tok": 4, "swiglu_alpha": 1.702, "swiglu_limit": 7.0,
        "attention_bias": true, "rope_theta": 150000.0, "rope_parameters": {"rope_type": "yarn", "factor": 32.0,
        "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false, "original_max_position_embeddings": 4096}})",
                            .describe = read_gpt_oss,
                            .spellings = gpt_oss_spellings};

}  // namespace family
}  // namespace nibble
