// hunyuan_v1_dense and hunyuan_v1_moe: llama with norms of queries and keys after the rotary embedding; experts with a
// softmax router and a shared MLP.
#include "architecture/family.h"

#include <algorithm>

namespace nibble {
namespace {

Result<DenseModel> read_hunyuan(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(DenseModel d, read_dense(f, root));
    NIBBLE_CHECK(read_biases(f, d.attention, d.mlp));
    for (const char* key : {"use_qk_norm", "qk_norm", "use_rotary_pos_emb"}) NIBBLE_CHECK(f.must_be(key, true));
    for (const char* key : {"use_cla", "position_embedding_xdrope"}) NIBBLE_CHECK(f.must_be(key, false));
    NIBBLE_CHECK(f.must_be("norm_type", "rms"));
    for (const char* key : {"eod_token_id", "cla_share_factor", "class_num", "add_classification_head", "dense_list",
                            "pool_type", "num_media_embeds", "mask_init_id", "im_start_id", "im_end_id",
                            "im_newline_id", "text_start_id", "text_end_id", "video_start_id", "video_end_id"})
        f.ignore(key);
    d.attention.qk_norm = QkNorm::late;
    d.attention.q_norm = "query_layernorm", d.attention.k_norm = "key_layernorm";
    return d;
}

Result<ModelConfig> read_hunyuan_dense(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(DenseModel d, read_hunyuan(f, root));
    return std::move(d).with_equal_layers();
}

Result<ModelConfig> read_hunyuan_moe(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(DenseModel d, read_hunyuan(f, root));
    NIBBLE_TRY(const int64_t experts, f.integer("num_experts"));
    NIBBLE_TRY(auto chosen, f.integers("moe_topk"));  // one number, or one per layer
    NIBBLE_TRY(const auto shared, f.integers("num_shared_expert"));
    NIBBLE_TRY(const auto widths, f.integers("moe_intermediate_size"));
    const auto layers = static_cast<size_t>(d.trunk.layers);
    if (chosen.size() == 1) chosen.resize(layers, chosen[0]);
    if (chosen.size() != layers) return f.bad("moe_topk", fmt::format("expected one number or {}", layers));
    for (const int64_t k : chosen)
        if (k < 1 || k > experts) return f.bad("moe_topk", "more than num_experts, or none");
    if (std::ranges::any_of(shared, [](int64_t n) { return n != 1; }))
        return f.bad("num_shared_expert", "only 1 is supported");
    if (std::ranges::any_of(widths, [&](int64_t n) { return n != d.mlp.intermediate; }))
        return f.bad("moe_intermediate_size", "differs from intermediate_size");
    for (const char* key :
         {"moe_drop_tokens", "moe_random_routing_dropped_token", "moe_layer_num_skipped", "capacity_factor"})
        f.ignore(key);
    MoeConfig moe;
    moe.experts = static_cast<int>(experts);
    moe.expert = moe.shared = d.mlp;
    moe.gate = "gate.wg", moe.shared_name = "shared_mlp";
    for (size_t l = 0; l < layers; ++l) {
        moe.top_k = static_cast<int>(chosen[l]);
        add_layer(d.trunk, static_cast<int64_t>(l), d.attention, moe);
    }
    return std::move(d.trunk.model);
}

constexpr FieldSpelling hunyuan_spellings[] = {{"head_dim", "attention_head_dim"}};
constexpr FieldSpelling hunyuan_moe_spellings[] = {
    {"head_dim", "attention_head_dim"}, {"moe_topk", "num_experts_per_tok"}, {"num_experts", "num_local_experts"}};

}  // namespace

namespace family {

extern const Family hunyuan_v1_dense{.model_type = "hunyuan_v1_dense",
                                     .defaults = R"({
        "vocab_size": 290943, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-05,
        "tie_word_embeddings": false, "attention_bias": false, "rope_theta": 10000.0})",
                                     .describe = read_hunyuan_dense,
                                     .spellings = hunyuan_spellings};

extern const Family hunyuan_v1_moe{.model_type = "hunyuan_v1_moe",
                                   .defaults = R"({
        "vocab_size": 290943, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-05,
        "tie_word_embeddings": false, "attention_bias": false, "num_experts": 1, "moe_topk": 1,
        "rope_theta": 10000.0})",
                                   .describe = read_hunyuan_moe,
                                   .spellings = hunyuan_moe_spellings};

}  // namespace family
}  // namespace nibble
