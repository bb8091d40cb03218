// minimax_m3: attention whose queries see the blocks of keys that an indexer chooses, norms times 1 + w, clamped gated
// units, and experts with a sigmoid router and a shared expert in some layers.
#include "architecture/family.h"

namespace nibble {
namespace {

// The indexer, and whether each layer has it. sparse_attention_config is the older spelling.
struct SparseLayers {
    IndexerConfig indexer;
    std::vector<bool> sparse;
};

Result<SparseLayers> read_sparse_layers(ConfigFields& f, int64_t layers) {
    SparseLayers s;
    s.indexer.weighted = false;
    const Json* object = f.find("sparse_attention_config");
    if (object && !object->is_object()) return f.bad("sparse_attention_config", "expected an object");
    const Json older = object ? *object : Json::object();
    ConfigFields old(older, "config.json: sparse_attention_config");
    const auto read = [&](const char* key, const char* older_key, int64_t least) -> Result<int64_t> {
        NIBBLE_TRY(const int64_t value, f.integer(key, least));
        return old.integer_or(older_key, value, least);
    };
    NIBBLE_TRY(const int64_t heads, read("index_n_heads", "sparse_num_index_heads", 1));
    NIBBLE_TRY(const int64_t dim, read("index_head_dim", "sparse_index_dim", 1));
    NIBBLE_TRY(s.indexer.block, read("index_block_size", "sparse_block_size", 1));
    NIBBLE_TRY(s.indexer.top, read("index_topk_blocks", "sparse_topk_blocks", 1));
    NIBBLE_TRY(s.indexer.local, read("index_local_blocks", "sparse_local_block", 0));
    s.indexer.heads = static_cast<int>(heads), s.indexer.dim = static_cast<int>(dim);
    if (s.indexer.local > s.indexer.top) return f.bad("index_local_blocks", "more than index_topk_blocks");
    NIBBLE_TRY(const auto flags, old.integers("sparse_attention_freq"));
    NIBBLE_CHECK(old.all_read());
    NIBBLE_TRY(s.sparse, read_layer_kinds(f, "layer_types", layers, "minimax_m3_sparse", "full_attention"));
    if (s.sparse.empty())
        for (const int64_t flag : flags) s.sparse.push_back(flag != 0);
    if (s.sparse.empty()) s.sparse.resize(static_cast<size_t>(layers));
    if (std::ssize(s.sparse) != layers)
        return f.bad("sparse_attention_config", fmt::format("sparse_attention_freq needs one per layer, {}", layers));
    return s;
}

// Returns whether each layer has experts. moe_layer_freq is the older spelling.
Result<std::vector<bool>> read_expert_layers(ConfigFields& f, int64_t layers) {
    NIBBLE_TRY(auto sparse, read_layer_kinds(f, "mlp_layer_types", layers, "sparse", "dense"));
    NIBBLE_TRY(const auto flags, f.integers("moe_layer_freq"));
    if (sparse.empty())
        for (const int64_t flag : flags) sparse.push_back(flag != 0);
    if (sparse.empty()) sparse.assign(static_cast<size_t>(layers), true);
    if (std::ssize(sparse) != layers) return f.bad("moe_layer_freq", fmt::format("expected one per layer, {}", layers));
    return sparse;
}

Result<ModelConfig> read_minimax_m3(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(Trunk t, read_trunk(f, root));
    t.model.norm_plus_one = true;
    NIBBLE_TRY(AttentionConfig a, read_heads(f, t.model.hidden));
    a.qk_norm = QkNorm::head;
    NIBBLE_TRY(const int64_t rotated, f.integer_or("rotary_dim", a.head_dim));
    NIBBLE_TRY(a.rope, read_rope(f, a.head_dim, t.model.context,
                                 {.partial = static_cast<double>(rotated) / static_cast<double>(a.head_dim)}));
    NIBBLE_TRY(SparseLayers layers, read_sparse_layers(f, t.layers));
    layers.indexer.rope = a.rope;
    if (a.kv_heads % layers.indexer.heads != 0 || layers.indexer.dim < a.rope.dims)
        return f.bad("index_n_heads", "does not divide num_key_value_heads, or index_head_dim is below rotary_dim");

    NIBBLE_TRY(const std::string activation, f.string_or("hidden_act", "silu"));
    if (activation != "silu" && activation != "swigluoai")
        return f.bad("hidden_act", "only silu and swigluoai are supported");
    NIBBLE_TRY(const double alpha, f.factor("swiglu_alpha"));
    NIBBLE_TRY(const double limit, f.factor("swiglu_limit"));
    NIBBLE_TRY(const int64_t dense_width, f.integer("dense_intermediate_size"));
    NIBBLE_TRY(const int64_t width, f.integer("intermediate_size"));
    NIBBLE_TRY(const int64_t shared, f.integer("shared_intermediate_size"));
    NIBBLE_TRY(const double scaling, f.factor("routed_scaling_factor"));
    MlpConfig mlp{.intermediate = static_cast<int>(dense_width)};
    mlp.clamp = ClampedGlu{.limit = static_cast<float>(limit), .alpha = static_cast<float>(alpha), .up_offset = 1.0f};
    MoeConfig moe{.expert = mlp,
                  .shared = mlp,
                  .router = MoeConfig::Router::sigmoid,
                  .selection_bias = true,
                  .routed_scaling = static_cast<float>(scaling),
                  .selection_bias_name = "e_score_correction_bias"};
    NIBBLE_CHECK(set_experts(f, moe, "num_local_experts", "num_experts_per_tok"));
    moe.expert.intermediate = static_cast<int>(width), moe.shared.intermediate = static_cast<int>(shared);
    moe.expert.gate_proj = "w1", moe.expert.up_proj = "w3", moe.expert.down_proj = "w2";
    NIBBLE_TRY(const auto experts, read_expert_layers(f, t.layers));
    for (int64_t l = 0; l < t.layers; ++l) {
        const auto at = static_cast<size_t>(l);
        a.indexer = layers.sparse[at] ? std::optional(layers.indexer) : std::nullopt;
        BlockConfig& block = add_layer(t, l, a, experts[at] ? MixerConfig(moe) : MixerConfig(mlp)).mlp;
        if (experts[at]) block.prefix = fmt::format("{}layers.{}.block_sparse_moe", root, l);
    }
    return std::move(t.model);
}

constexpr FieldSpelling minimax_m3_spellings[] = {{"num_local_experts", "num_experts"}};

}  // namespace

namespace family {

extern const Family minimax_m3{.model_type = "minimax_m3_vl_text",
                               .defaults = R"({
        "vocab_size": 200064, "hidden_size": 6144, "intermediate_size": 3072, "num_hidden_layers": 60,
        "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128, "hidden_act": "silu",
        "max_position_embeddings": 524288, "rms_norm_eps": 1e-06, "tie_word_embeddings": false,
        "num_experts_per_tok": 4, "num_local_experts": 128, "dense_intermediate_size": 12288,
        "shared_intermediate_size": 3072, "routed_scaling_factor": 2.0, "rotary_dim": 64, "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0, "index_n_heads": 4, "index_head_dim": 128, "index_block_size": 128,
        "index_topk_blocks": 16, "index_local_blocks": 1, "rope_theta": 5000000.0})",
                               .describe = read_minimax_m3,
                               .spellings = minimax_m3_spellings,
                               .multimodal = "minimax_m3_vl",
                               .multimodal_root = "language_model.model."};

}  // namespace family
}  // namespace nibble
