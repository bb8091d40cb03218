// granitemoehybrid: Mamba-2 in most layers, attention in the others, granite's multipliers, experts weighed by a
// softmax of the chosen logits, and a shared MLP.
#include "architecture/config_rope.h"
#include "architecture/family.h"

namespace nibble {
namespace {

Result<ModelConfig> read_granitemoehybrid(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(Trunk t, read_trunk(f, root));
    NIBBLE_TRY(AttentionConfig a, read_heads(f, t.model.hidden));
    NIBBLE_TRY(a.qkv_bias, f.boolean_or("attention_bias", false));
    a.out_bias = a.qkv_bias;
    NIBBLE_TRY(const float residual, read_granite_multipliers(f, t.model, a));
    NIBBLE_TRY(const std::string positions, f.string_or("position_embedding_type", "nope"));
    if (positions != "nope" && positions != "rope")
        return f.bad("position_embedding_type", "only nope and rope are supported");
    if (positions == "rope") {
        NIBBLE_TRY(a.rope, read_rope(f, a.head_dim, t.model.context));
    }
    f.ignore("rope_parameters");

    MoeConfig moe{.gate = "block_sparse_moe.router.layer",
                  .experts_name = "block_sparse_moe.experts",
                  .shared_name = "shared_mlp"};
    NIBBLE_CHECK(f.must_be("hidden_act", "silu"));
    NIBBLE_CHECK(set_experts(f, moe, "num_local_experts", "num_experts_per_tok", 0));
    NIBBLE_TRY(const int64_t width, f.integer("intermediate_size"));
    moe.expert.intermediate = static_cast<int>(width);
    NIBBLE_TRY(const int64_t shared, f.integer("shared_intermediate_size"));
    moe.shared.intermediate = static_cast<int>(shared);
    moe.shared.gate_up_proj = "input_linear", moe.shared.down_proj = "output_linear";
    NIBBLE_TRY(const int64_t expand, f.integer("mamba_expand"));
    NIBBLE_TRY(const MambaConfig mamba, read_mamba_heads(f, expand * t.model.hidden));
    NIBBLE_TRY(auto attends, read_layer_kinds(f, "layer_types", t.layers, "full_attention", "linear_attention"));
    attends.resize(static_cast<size_t>(t.layers));
    for (int64_t l = 0; l < t.layers; ++l) {
        const bool attention = attends[static_cast<size_t>(l)];
        const LayerBlocks blocks = add_layer(t, l, attention ? MixerConfig(a) : MixerConfig(mamba),
                                             moe.experts > 0 ? MixerConfig(moe) : MixerConfig(moe.shared));
        const std::string base = fmt::format("{}layers.{}", root, l);
        if (!attention) blocks.attention.prefix = base + ".mamba";
        blocks.mlp.prefix = moe.experts > 0 ? base : base + ".shared_mlp";
        blocks.attention.residual_scale = blocks.mlp.residual_scale = residual;
    }
    return std::move(t.model);
}

constexpr FieldSpelling hybrid_spellings[] = {{"layer_types", "layers_block_type"}};

}  // namespace

namespace family {

extern const Family granitemoehybrid{.model_type = "granitemoehybrid",
                                     .defaults = R"({
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-06,
        "tie_word_embeddings": false, "attention_bias": false, "embedding_multiplier": 1.0, "logits_scaling": 1.0,
        "residual_multiplier": 1.0, "attention_multiplier": 1.0, "num_local_experts": 8, "num_experts_per_tok": 2,
        "shared_intermediate_size": 1024, "mamba_n_heads": 128, "mamba_n_groups": 1, "mamba_d_state": 256,
        "mamba_d_head": "auto", "mamba_d_conv": 4, "mamba_expand": 2, "mamba_conv_bias": true,
        "mamba_proj_bias": false, "time_step_limit": [0.0, Infinity], "rope_theta": 10000.0})",
                                     .describe = read_granitemoehybrid,
                                     .spellings = hybrid_spellings};

}  // namespace family
}  // namespace nibble
