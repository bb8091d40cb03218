// deepseek_v4: hyper-connections in place of residual sums, attention over a window and over pooled keys, an indexer in
// some layers, outputs in groups, and experts of which the first layers choose by token id.
#include "architecture/family.h"

#include <algorithm>

namespace nibble {
namespace {

// rope_parameters: an object per kind, "main" and "compress", or one object for "compress" with theta outside.
Result<Rope> read_kind_rope(ConfigFields& f, const char* kind, const char* theta_key, int64_t dims, int64_t context) {
    const Json* found = f.find("rope_parameters");
    if (!found) found = f.find("rope_scaling");
    Json fields = Json::object();
    const bool nested = found && found->is_object() && found->contains(kind);
    if (nested)
        fields = found->at(kind);
    else if (found && std::string_view(kind) == "compress")
        fields = *found;
    if (!fields.is_object()) return f.bad("rope_parameters", "expected objects");
    if (fields.contains("type")) fields["rope_type"] = fields["type"];
    for (const char* key : {"type", "partial_rotary_factor", "main", "compress"}) fields.erase(key);
    NIBBLE_TRY(const double theta, f.factor_or(theta_key, 10000.0));
    if (!nested || !fields.contains("rope_theta")) fields["rope_theta"] = theta;
    if (!fields.contains("rope_type")) fields["rope_type"] = "default";
    if (fields["rope_type"] == "yarn" && !fields.contains("attention_factor")) fields["attention_factor"] = 1.0;
    const Json object{{"rope_parameters", fields}};
    ConfigFields inner(object, "config.json");
    NIBBLE_TRY(Rope rope, read_rope(inner, dims, context));
    rope.interleaved = true;
    return rope;
}

struct Rates {
    int64_t sparse = 4, heavy = 128;  // tokens per pooled key with and without an indexer
};

Result<Rates> read_rates(ConfigFields& f) {
    Rates rates;
    if (const Json* object = f.find("compress_rates")) {
        if (!object->is_object()) return f.bad("compress_rates", "expected an object");
        ConfigFields of(*object, "config.json: compress_rates");
        NIBBLE_TRY(rates.sparse, of.integer_or("compressed_sparse_attention", rates.sparse));
        NIBBLE_TRY(rates.heavy, of.integer_or("heavily_compressed_attention", rates.heavy));
        NIBBLE_CHECK(of.all_read());
    }
    NIBBLE_TRY(rates.sparse, f.integer_or("compress_rate_csa", rates.sparse));
    NIBBLE_TRY(rates.heavy, f.integer_or("compress_rate_hca", rates.heavy));
    return rates;
}

struct LayerRate {
    int64_t rate = 0;  // 0: a window only
    bool indexed = false;
};

// compress_ratios is the older spelling of layer_types.
Result<std::vector<LayerRate>> read_layer_rates(ConfigFields& f, int64_t layers, const Rates& rates) {
    NIBBLE_TRY(const auto kinds, f.strings("layer_types"));
    NIBBLE_TRY(auto list, f.integers("compress_ratios"));
    if (kinds.empty() && list.empty())
        for (int64_t l = 0; l < layers; ++l) list.push_back(l < 2 || l % 2 == 0 ? 128 : 4);
    std::vector<LayerRate> of_layer;
    for (const std::string& kind : kinds) {
        const bool sparse = kind == "compressed_sparse_attention", heavy = kind == "heavily_compressed_attention";
        if (!sparse && !heavy && kind != "sliding_attention")
            return f.bad("layer_types", "only sliding, compressed_sparse and heavily_compressed are supported");
        of_layer.push_back({sparse ? rates.sparse : heavy ? rates.heavy : 0, sparse});
    }
    for (const int64_t ratio : kinds.empty() ? list : std::vector<int64_t>{}) {
        if (ratio != 0 && ratio != 4 && ratio != 128)
            return f.bad("compress_ratios", "only 0, 4 and 128 are supported");
        of_layer.push_back({ratio == 4 ? rates.sparse : ratio == 128 ? rates.heavy : 0, ratio == 4});
    }
    if (std::ssize(of_layer) < layers) return f.bad("layer_types", fmt::format("expected one per layer, {}", layers));
    return of_layer;
}

Result<CompressedAttentionConfig> read_compressed(ConfigFields& f) {
    CompressedAttentionConfig a;
    NIBBLE_TRY(const int64_t heads, f.integer("num_attention_heads"));
    NIBBLE_TRY(const int64_t dim, f.integer("head_dim"));
    NIBBLE_TRY(const int64_t q_rank, f.integer("q_lora_rank"));
    NIBBLE_TRY(const int64_t groups, f.integer("o_groups"));
    NIBBLE_TRY(const int64_t out_rank, f.integer("o_lora_rank"));
    NIBBLE_TRY(a.window, f.integer("sliding_window"));
    NIBBLE_CHECK(f.must_be("num_key_value_heads", 1));
    for (const char* key : {"attention_bias", "mlp_bias"}) NIBBLE_CHECK(f.must_be(key, false));
    if (heads % groups != 0) return f.bad("o_groups", fmt::format("does not divide num_attention_heads, {}", heads));
    a.heads = static_cast<int>(heads), a.dim = static_cast<int>(dim), a.q_rank = static_cast<int>(q_rank);
    a.groups = static_cast<int>(groups), a.out_rank = static_cast<int>(out_rank);
    a.scale = score_scale(a.dim);
    return a;
}

Result<IndexerConfig> read_pooled_indexer(ConfigFields& f) {
    IndexerConfig i;
    NIBBLE_TRY(const int64_t heads, f.integer("index_n_heads"));
    NIBBLE_TRY(const int64_t dim, f.integer("index_head_dim"));
    NIBBLE_TRY(i.top, f.integer("index_topk"));
    i.heads = static_cast<int>(heads), i.dim = static_cast<int>(dim);
    return i;
}

Result<MoeConfig> read_v4_experts(ConfigFields& f) {
    NIBBLE_TRY(MoeConfig moe, read_grouped_experts(f));
    NIBBLE_CHECK(f.must_be("hidden_act", "silu"));
    NIBBLE_CHECK(f.must_be("scoring_func", "sqrtsoftplus"));
    NIBBLE_TRY(const double limit, f.factor("swiglu_limit"));
    moe.router = MoeConfig::Router::sqrt_softplus;
    moe.selection_bias_name = "gate.bias";
    moe.expert.gate_proj = "w1", moe.expert.up_proj = "w3", moe.expert.down_proj = "w2";
    moe.expert.clamp = ClampedGlu{.limit = static_cast<float>(limit)};
    moe.normalize = true;     // whatever norm_topk_prob says, as in transformers
    moe.shared = moe.expert;  // one width, whatever n_shared_experts says, as in transformers
    return moe;
}

// Returns whether each layer chooses experts by token id.
Result<std::vector<bool>> read_hash_layers(ConfigFields& f, int64_t layers) {
    NIBBLE_TRY(auto hashed, read_layer_kinds(f, "mlp_layer_types", layers, "hash_moe", "moe"));
    NIBBLE_TRY(const int64_t leading, f.integer_or("num_hash_layers", 3, 0));
    if (hashed.empty())
        for (int64_t l = 0; l < layers; ++l) hashed.push_back(l < leading);
    return hashed;
}

Status read_hyper(ConfigFields& f, const std::string& root, ModelConfig& model) {
    HyperConfig h;
    NIBBLE_TRY(const int64_t streams, f.integer("hc_mult"));
    NIBBLE_TRY(const int64_t iterations, f.integer("hc_sinkhorn_iters"));
    NIBBLE_TRY(const double eps, f.number("hc_eps", 0.0, 1.0));
    if (streams > 64) return f.bad("hc_mult", "more than 64 are not supported");
    if (iterations > 1000) return f.bad("hc_sinkhorn_iters", "more than 1000 are not supported");
    h.streams = static_cast<int>(streams), h.iterations = static_cast<int>(iterations);
    h.eps = static_cast<float>(eps);
    h.head = root.empty() ? "hc_head" : root + "hc_head.hc";
    model.hyper = std::move(h);
    return Ok{};
}

// Files that transformers saved have the root "model." and other names than published ones.
Result<ModelConfig> read_deepseek_v4(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(Trunk t, read_trunk(f, root));
    const bool published = root.empty();
    if (published) t.model.embedding = "embed.weight";
    NIBBLE_TRY(const bool tie, f.boolean_or("tie_word_embeddings", false));
    t.model.head = tie ? t.model.embedding : "head.weight";
    NIBBLE_CHECK(read_hyper(f, root, t.model));
    NIBBLE_TRY(CompressedAttentionConfig a, read_compressed(f));
    a.kv_norm = published ? "kv_norm" : "norm";
    NIBBLE_TRY(const double partial, f.number_or("partial_rotary_factor", 64.0 / 512, 0.0, 1.0));
    NIBBLE_TRY(const int64_t rotated, f.integer_or("qk_rope_head_dim", static_cast<int64_t>(a.dim * partial)));
    if (rotated % 2 != 0 || rotated > a.dim) return f.bad("qk_rope_head_dim", "odd, or more than head_dim");
    NIBBLE_TRY(const Rope main, read_kind_rope(f, "main", "rope_theta", rotated, t.model.context));
    NIBBLE_TRY(const Rope compress, read_kind_rope(f, "compress", "compress_rope_theta", rotated, t.model.context));
    NIBBLE_TRY(const Rates rates, read_rates(f));
    NIBBLE_TRY(const auto of_layer, read_layer_rates(f, t.layers, rates));
    NIBBLE_TRY(const IndexerConfig indexer, read_pooled_indexer(f));
    if (indexer.dim < rotated)
        return f.bad("index_head_dim", fmt::format("less than the rotated dimensions, {}", rotated));
    NIBBLE_TRY(MoeConfig moe, read_v4_experts(f));
    NIBBLE_TRY(const auto hashed, read_hash_layers(f, t.layers));
    // The layer for prediction, and a property of published quantized experts.
    for (const char* key : {"num_nextn_predict_layers", "expert_dtype", "rope_scaling"}) f.ignore(key);
    for (int64_t l = 0; l < t.layers; ++l) {
        const LayerRate& layer = of_layer[static_cast<size_t>(l)];
        a.rate = layer.rate, a.overlaps = layer.indexed;
        a.indexer = layer.indexed ? std::optional(indexer) : std::nullopt;
        a.rope = a.rate > 0 ? compress : main;
        moe.selection_bias = !hashed[static_cast<size_t>(l)];
        moe.hash_table = moe.selection_bias ? "" : "gate.tid2eid";
        moe.vocab = t.model.vocab;
        const LayerBlocks blocks = add_layer(t, l, a, moe);
        const std::string base = fmt::format("{}layers.{}.", root, l);
        blocks.attention.prefix = base + "attn", blocks.mlp.prefix = base + "ffn";
        blocks.attention.norm = base + "attn_norm.weight", blocks.mlp.norm = base + "ffn_norm.weight";
        blocks.attention.hyper = base + "hc_attn", blocks.mlp.hyper = base + "hc_ffn";
    }
    return std::move(t.model);
}

constexpr FieldSpelling deepseek_v4_spellings[] = {{"n_routed_experts", "num_local_experts"}};

}  // namespace

namespace family {

extern const Family deepseek_v4{.model_type = "deepseek_v4",
                                .defaults = R"({
        "vocab_size": 129280, "hidden_size": 4096, "moe_intermediate_size": 2048, "num_hidden_layers": 43,
        "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512, "q_lora_rank": 1024,
        "num_experts_per_tok": 6, "n_routed_experts": 256, "n_shared_experts": 1, "scoring_func": "sqrtsoftplus",
        "norm_topk_prob": true, "routed_scaling_factor": 1.5, "max_position_embeddings": 1048576,
        "compress_rope_theta": 160000.0, "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-06,
        "swiglu_limit": 10.0, "sliding_window": 128, "o_groups": 8, "o_lora_rank": 1024, "index_n_heads": 64,
        "index_head_dim": 128, "index_topk": 512, "hidden_act": "silu", "rms_norm_eps": 1e-06,
        "tie_word_embeddings": false, "attention_bias": false, "mlp_bias": false})",
                                .describe = read_deepseek_v4,
                                .spellings = deepseek_v4_spellings,
                                .root = ""};

}  // namespace family
}  // namespace nibble
