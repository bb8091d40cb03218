// granitemoe and granitemoeshared: attention with granite's multipliers, experts weighed by a softmax of the chosen
// logits, and in the second family an MLP for all tokens.
#include "architecture/family.h"

namespace nibble {
namespace {

Result<ModelConfig> read_granitemoe(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(DenseModel d, read_dense(f, root));
    NIBBLE_TRY(d.attention.qkv_bias, f.boolean_or("attention_bias", false));
    d.attention.out_bias = d.attention.qkv_bias;
    NIBBLE_TRY(const float residual, read_granite_multipliers(f, d.trunk.model, d.attention));
    MoeConfig moe{.gate = "block_sparse_moe.router.layer",
                  .experts_name = "block_sparse_moe.experts",
                  .shared_name = "shared_mlp"};
    NIBBLE_CHECK(set_experts(f, moe, "num_local_experts", "num_experts_per_tok"));
    moe.expert = d.mlp;
    NIBBLE_TRY(const int64_t shared, f.integer_or("shared_intermediate_size", 0, 0));
    moe.shared.intermediate = static_cast<int>(shared);
    moe.shared.gate_up_proj = "input_linear", moe.shared.down_proj = "output_linear";
    for (int64_t l = 0; l < d.trunk.layers; ++l) {
        const LayerBlocks blocks = add_layer(d.trunk, l, d.attention, moe);
        blocks.mlp.prefix = fmt::format("{}layers.{}", root, l);
        blocks.attention.residual_scale = blocks.mlp.residual_scale = residual;
    }
    return std::move(d.trunk.model);
}

constexpr FieldSpelling granitemoe_spellings[] = {{"num_local_experts", "num_experts"}};

constexpr std::string_view granitemoe_defaults = R"({
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-06,
        "tie_word_embeddings": false, "attention_bias": false, "embedding_multiplier": 1.0, "logits_scaling": 1.0,
        "residual_multiplier": 1.0, "attention_multiplier": 1.0, "num_local_experts": 8, "num_experts_per_tok": 2,
        "shared_intermediate_size": 0, "rope_theta": 10000.0})";

}  // namespace

namespace family {

extern const Family granitemoe{.model_type = "granitemoe",
                               .defaults = granitemoe_defaults,
                               .describe = read_granitemoe,
                               .spellings = granitemoe_spellings};

extern const Family granitemoeshared{.model_type = "granitemoeshared",
                                     .defaults = granitemoe_defaults,
                                     .describe = read_granitemoe,
                                     .spellings = granitemoe_spellings};

}  // namespace family
}  // namespace nibble
