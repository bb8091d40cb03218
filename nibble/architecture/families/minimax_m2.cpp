// minimax_m2: one norm over all heads of q and one over those of k, a rotary embedding of a part of each head, and
// experts with a sigmoid router in every layer.
#include "architecture/family.h"

#include <algorithm>

namespace nibble {
namespace {

Result<ModelConfig> read_minimax_m2(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(const int64_t head_dim, f.integer("head_dim"));
    NIBBLE_TRY(const int64_t rotated, f.integer_or("rotary_dim", head_dim));
    const double partial = static_cast<double>(rotated) / static_cast<double>(head_dim);
    NIBBLE_TRY(DenseModel d, read_dense(f, root, {.partial = partial}));
    d.attention.qk_norm = QkNorm::joined;
    MoeConfig moe;
    NIBBLE_CHECK(set_experts(f, moe, "num_local_experts", "num_experts_per_tok"));
    moe.router = MoeConfig::Router::sigmoid;
    moe.selection_bias = true, moe.selection_bias_name = "e_score_correction_bias";
    moe.expert = d.mlp;
    moe.expert.gate_proj = "w1", moe.expert.up_proj = "w3", moe.expert.down_proj = "w2";
    for (const char* key : {"use_qk_norm", "use_routing_bias"}) NIBBLE_CHECK(f.must_be(key, true));
    NIBBLE_CHECK(f.must_be("qk_norm_type", "per_layer"));
    NIBBLE_CHECK(f.must_be("scoring_func", "sigmoid"));
    NIBBLE_CHECK(f.must_be("shared_intermediate_size", 0));
    NIBBLE_TRY(const auto kinds, f.integers("attn_type_list"));
    if (std::ranges::any_of(kinds, [](int64_t kind) { return kind != 1; }))
        return f.bad("attn_type_list", "only 1, full attention, is supported");
    for (const char* key : {"use_mtp", "num_mtp_modules", "mtp_transformer_layers"}) f.ignore(key);
    for (int64_t l = 0; l < d.trunk.layers; ++l)
        add_layer(d.trunk, l, d.attention, moe).mlp.prefix = fmt::format("{}layers.{}.block_sparse_moe", root, l);
    return std::move(d.trunk.model);
}

constexpr FieldSpelling minimax_m2_spellings[] = {{"num_local_experts", "num_experts"}};

}  // namespace

namespace family {

extern const Family minimax_m2{.model_type = "minimax_m2",
                               .defaults = R"({
        "vocab_size": 200064, "hidden_size": 3072, "intermediate_size": 1536, "num_hidden_layers": 62,
        "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128, "hidden_act": "silu",
        "max_position_embeddings": 196608, "rms_norm_eps": 1e-06, "tie_word_embeddings": false,
        "num_experts_per_tok": 8, "num_local_experts": 256, "rope_theta": 5000000.0})",
                               .describe = read_minimax_m2,
                               .spellings = minimax_m2_spellings,
                               .gguf = "minimax-m2"};

}  // namespace family
}  // namespace nibble
