// deepseek_v32 and glm_moe_dsa (GLM-5): deepseek_v3 whose queries attend to the keys that an indexer chooses. In GLM-5,
// layers may share the choice of an earlier one.
#include "architecture/family.h"

#include <algorithm>

namespace nibble {
namespace {

Result<IndexerConfig> read_indexer(ConfigFields& f, bool interleaved) {
    IndexerConfig i;
    NIBBLE_TRY(const int64_t heads, f.integer("index_n_heads"));
    NIBBLE_TRY(const int64_t dim, f.integer("index_head_dim"));
    NIBBLE_TRY(i.top, f.integer("index_topk"));
    NIBBLE_TRY(i.rope.interleaved, f.boolean_or("indexer_rope_interleave", interleaved));
    i.heads = static_cast<int>(heads), i.dim = static_cast<int>(dim);
    NIBBLE_TRY(const auto kinds, f.strings("layer_types"));
    if (std::ranges::any_of(kinds, [](const std::string& kind) { return kind != "indexed_attention"; }))
        return f.bad("layer_types", "only indexed_attention is supported");
    f.ignore("mlp_bias");  // read by no modeling file
    return i;
}

// Returns whether each layer chooses keys itself. The list may have an entry for the layer for prediction.
Result<std::vector<bool>> read_choosing_layers(ConfigFields& f, int64_t layers) {
    NIBBLE_TRY(auto kinds, f.strings("indexer_types"));
    NIBBLE_TRY(const std::string pattern, f.string_or("index_topk_pattern", ""));
    NIBBLE_TRY(const int64_t every, f.integer_or("index_topk_freq", 1));
    NIBBLE_TRY(const int64_t offset, f.integer_or("index_skip_topk_offset", 2, 0));
    if (kinds.empty())
        for (const char letter : pattern)
            kinds.emplace_back(letter == 'F' ? "full" : letter == 'S' ? "shared" : std::string(1, letter));
    if (kinds.empty())
        for (int64_t l = 0; l < layers; ++l)
            kinds.emplace_back(std::max<int64_t>(l - offset + 1, 0) % every == 0 ? "full" : "shared");
    if (std::ssize(kinds) < layers) return f.bad("indexer_types", fmt::format("expected one per layer, {}", layers));
    std::vector<bool> choosing;
    for (const std::string& kind : kinds) {
        if (kind != "full" && kind != "shared") return f.bad("indexer_types", "only full and shared are supported");
        choosing.push_back(kind == "full");
    }
    if (!choosing[0]) return f.bad("indexer_types", "the first layer must be full");
    return choosing;
}

// Layers that do not choose use the choice of the last layer before them that does.
Result<ModelConfig> read_sparse_model(ConfigFields& f, Trunk t, IndexerConfig indexer, std::vector<bool> choosing) {
    NIBBLE_TRY(const auto dense, read_dense_layers(f, t.layers));
    NIBBLE_TRY(const int64_t rotated, f.integer("qk_rope_head_dim"));
    if (indexer.dim < rotated) return f.bad("index_head_dim", fmt::format("less than qk_rope_head_dim, {}", rotated));
    const int64_t layers = t.layers;
    choosing.resize(static_cast<size_t>(layers));
    choosing.push_back(true);  // the layer for prediction
    int owner = 0;
    const auto attention_of = [&](int64_t l, LatentAttentionConfig a) {
        const auto at = static_cast<size_t>(l);
        const bool interleaved = indexer.rope.interleaved;
        indexer.rope = a.rope;
        indexer.rope.interleaved = interleaved;
        if (choosing[at]) owner = static_cast<int>(2 * l);
        indexer.owner = choosing[at] ? -1 : owner;
        indexer.shared = choosing[at] && l + 1 < layers && !choosing[at + 1];
        a.indexer = indexer;
        return a;
    };
    return read_latent_model(
        f, std::move(t), [&](int64_t l) { return dense[static_cast<size_t>(l)]; }, attention_of);
}

Status check_query_rank(ConfigFields& f) {
    NIBBLE_TRY(const int64_t rank, f.integer_or("q_lora_rank", 0));
    return rank > 0 ? Status(Ok{}) : f.bad("q_lora_rank", "an indexer reads the latent of the query");
}

Result<ModelConfig> read_deepseek_v32(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(Trunk t, read_trunk(f, root));
    NIBBLE_CHECK(check_query_rank(f));
    NIBBLE_TRY(const IndexerConfig indexer, read_indexer(f, false));
    std::vector<bool> choosing(static_cast<size_t>(t.layers), true);
    return read_sparse_model(f, std::move(t), indexer, std::move(choosing));
}

Result<ModelConfig> read_glm_moe_dsa(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(Trunk t, read_trunk(f, root));
    NIBBLE_CHECK(check_query_rank(f));
    NIBBLE_TRY(const IndexerConfig indexer, read_indexer(f, true));
    NIBBLE_TRY(auto choosing, read_choosing_layers(f, t.layers));
    return read_sparse_model(f, std::move(t), indexer, std::move(choosing));
}

constexpr FieldSpelling sparse_spellings[] = {{"n_routed_experts", "num_local_experts"},
                                              {"n_routed_experts", "num_experts"},
                                              {"num_nextn_predict_layers", "num_mtp_layers"}};

}  // namespace

namespace family {

extern const Family deepseek_v32{.model_type = "deepseek_v32",
                                 .defaults = R"({
        "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
        "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "n_shared_experts": 1,
        "n_routed_experts": 256, "routed_scaling_factor": 2.5, "kv_lora_rank": 512, "q_lora_rank": 1536,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128, "n_group": 8, "topk_group": 4,
        "num_experts_per_tok": 8, "first_k_dense_replace": 3, "norm_topk_prob": true, "hidden_act": "silu",
        "max_position_embeddings": 163840, "rms_norm_eps": 1e-06, "tie_word_embeddings": false,
        "attention_bias": false, "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 64, "mlp_bias": false,
        "rope_theta": 10000.0})",
                                 .describe = read_deepseek_v32,
                                 .spellings = sparse_spellings};

extern const Family glm_moe_dsa{.model_type = "glm_moe_dsa",
                                .defaults = R"({
        "vocab_size": 154880, "hidden_size": 6144, "intermediate_size": 12288, "moe_intermediate_size": 2048,
        "num_hidden_layers": 78, "num_attention_heads": 64, "num_key_value_heads": 64, "n_shared_experts": 1,
        "n_routed_experts": 256, "routed_scaling_factor": 2.5, "kv_lora_rank": 512, "q_lora_rank": 2048,
        "qk_rope_head_dim": 64, "v_head_dim": 256, "qk_nope_head_dim": 192, "n_group": 1, "topk_group": 1,
        "num_experts_per_tok": 8, "first_k_dense_replace": 3, "norm_topk_prob": true, "hidden_act": "silu",
        "max_position_embeddings": 202752, "rms_norm_eps": 1e-05, "tie_word_embeddings": false,
        "attention_bias": false, "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 32, "mlp_bias": false,
        "rope_theta": 10000.0})",
                                .describe = read_glm_moe_dsa,
                                .spellings = sparse_spellings};

}  // namespace family
}  // namespace nibble
