// ernie4_5_moe: llama with an interleaved rotary embedding, and experts whose softmax router has a selection bias.
#include "architecture/family.h"

namespace nibble {
namespace {

Result<ModelConfig> read_ernie4_5_moe(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(DenseModel d, read_dense(f, root));
    d.attention.rope.interleaved = true;
    NIBBLE_TRY(const bool bias, f.boolean_or("use_bias", false));  // routed experts have none
    d.attention.qkv_bias = d.attention.out_bias = d.mlp.bias = d.trunk.model.head_bias = bias;
    MoeConfig moe;
    NIBBLE_CHECK(set_experts(f, moe, "moe_num_experts", "moe_k"));
    NIBBLE_TRY(const int64_t width, f.integer("moe_intermediate_size"));
    NIBBLE_TRY(const int64_t shared, f.integer_or("moe_num_shared_experts", 0, 0));
    NIBBLE_TRY(const int64_t first, f.integer_or("moe_layer_start_index", 1, 0));
    // -1: the last layer
    NIBBLE_TRY(const int64_t last, f.integer_or("moe_layer_end_index", -1, -1));
    NIBBLE_TRY(const int64_t interval, f.integer_or("moe_layer_interval", 1));
    f.ignore("moe_norm_min");  // a lower bound of the sum of probabilities, which is never that small
    for (const char* key : {"moe_capacity", "moe_use_aux_free", "moe_gate", "moe_aux_loss_lambda"}) f.ignore(key);
    moe.selection_bias = true, moe.selection_bias_name = "moe_statics.e_score_correction_bias";
    moe.expert.intermediate = static_cast<int>(width);
    moe.shared.intermediate = static_cast<int>(width * shared);
    moe.shared.bias = bias;
    for (int64_t l = 0; l < d.trunk.layers; ++l) {
        const bool sparse = (l + 1) % interval == 0 && l >= first && (last < 0 || l <= last);
        add_layer(d.trunk, l, d.attention, sparse ? MixerConfig(moe) : MixerConfig(d.mlp));
    }
    return std::move(d.trunk.model);
}

constexpr FieldSpelling ernie4_5_moe_spellings[] = {{"moe_num_experts", "num_experts"},
                                                    {"moe_k", "num_experts_per_tok"}};

}  // namespace

namespace family {

extern const Family ernie4_5_moe{.model_type = "ernie4_5_moe",
                                 .defaults = R"({
        "vocab_size": 103424, "hidden_size": 2560, "intermediate_size": 12288, "num_hidden_layers": 28,
        "num_attention_heads": 20, "num_key_value_heads": 4, "hidden_act": "silu", "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-05, "tie_word_embeddings": true, "use_bias": false, "moe_intermediate_size": 1536,
        "moe_k": 6, "moe_num_experts": 64, "moe_num_shared_experts": 2, "moe_layer_start_index": 1,
        "moe_layer_end_index": -1, "moe_layer_interval": 1, "moe_norm_min": 1e-12, "rope_theta": 500000.0})",
                                 .describe = read_ernie4_5_moe,
                                 .spellings = ernie4_5_moe_spellings};

}  // namespace family
}  // namespace nibble
