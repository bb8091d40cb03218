// Implements the helpers of the family tables (architecture/family.h).
#include "architecture/config_rope.h"
#include "architecture/family.h"
#include "formats/minifloat.h"

#include <cmath>
#include <limits>

namespace nibble {

Result<Trunk> read_trunk(ConfigFields& f, const std::string& root, const char* eps_key) {
    Trunk t{.root = root};
    NIBBLE_TRY(t.model.vocab, f.integer("vocab_size"));
    NIBBLE_TRY(t.model.hidden, f.integer("hidden_size"));
    NIBBLE_TRY(t.layers, f.layers());
    NIBBLE_TRY(t.model.context, f.integer("max_position_embeddings"));
    NIBBLE_TRY(const double eps, f.number(eps_key, 0.0, 1.0));
    t.model.norm_eps = static_cast<float>(eps);
    NIBBLE_TRY(const bool tie, f.boolean_or("tie_word_embeddings", false));
    t.model.embedding = root + "embed_tokens.weight";
    t.model.norm = root + "norm.weight";
    // With the root "language_model.model.", the head is "language_model.lm_head".
    const std::string outer = root.ends_with(".model.") ? root.substr(0, root.size() - 6) : "";
    t.model.head = tie ? t.model.embedding : outer + "lm_head.weight";
    return t;
}

Result<float> read_score_scale(ConfigFields& f) {
    NIBBLE_TRY(const double scalar, f.factor("query_pre_attn_scalar"));
    return static_cast<float>(1.0 / std::sqrt(scalar));
}

float root_of_width(int64_t hidden) {
    return round_to_bf16(static_cast<float>(std::sqrt(static_cast<double>(hidden))));
}

Result<float> read_cap(ConfigFields& f, const char* key) {
    NIBBLE_TRY(const double cap, f.factor_or(key, 0.0));
    return static_cast<float>(cap);
}

Result<AttentionConfig> read_heads(ConfigFields& f, int64_t hidden) {
    AttentionConfig a;
    NIBBLE_TRY(const int64_t heads, f.integer("num_attention_heads"));
    NIBBLE_TRY(const int64_t kv_heads, f.integer_or("num_key_value_heads", heads));
    NIBBLE_TRY(const int64_t head_dim, f.integer_or("head_dim", hidden / heads));
    if (head_dim < 1) return f.bad("num_attention_heads", fmt::format("more than hidden_size, {}", hidden));
    if (heads % kv_heads != 0)
        return f.bad("num_key_value_heads", fmt::format("does not divide num_attention_heads, {}", heads));
    a.heads = static_cast<int>(heads), a.kv_heads = static_cast<int>(kv_heads), a.head_dim = static_cast<int>(head_dim);
    a.scale = score_scale(a.head_dim);
    return a;
}

float score_scale(int head_dim) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim))); }

Result<LatentAttentionConfig> read_latent_heads(ConfigFields& f) {
    LatentAttentionConfig a;
    NIBBLE_TRY(const int64_t heads, f.integer("num_attention_heads"));
    NIBBLE_TRY(const int64_t q_rank, f.integer_or("q_lora_rank", 0));
    NIBBLE_TRY(const int64_t kv_rank, f.integer("kv_lora_rank"));
    NIBBLE_TRY(const int64_t nope, f.integer("qk_nope_head_dim"));
    NIBBLE_TRY(const int64_t rope, f.integer("qk_rope_head_dim"));
    NIBBLE_TRY(const int64_t v_dim, f.integer("v_head_dim"));
    a.heads = static_cast<int>(heads), a.q_rank = static_cast<int>(q_rank), a.kv_rank = static_cast<int>(kv_rank);
    a.nope_dim = static_cast<int>(nope), a.v_dim = static_cast<int>(v_dim);
    a.rope.dims = static_cast<int>(rope);
    a.scale = score_scale(static_cast<int>(nope + rope));
    NIBBLE_TRY(a.bias, f.boolean_or("attention_bias", false));
    for (const char* key : {"num_key_value_heads", "head_dim", "qk_head_dim"}) f.ignore(key);  // follow from the others
    return a;
}

Result<MlpConfig> read_mlp(ConfigFields& f) {
    MlpConfig m;
    NIBBLE_CHECK(f.must_be("hidden_act", "silu"));
    NIBBLE_TRY(const int64_t intermediate, f.integer("intermediate_size"));
    m.intermediate = static_cast<int>(intermediate);
    return m;
}

Status read_biases(ConfigFields& f, AttentionConfig& attention, MlpConfig& mlp) {
    NIBBLE_TRY(attention.qkv_bias, f.boolean_or("attention_bias", false));
    attention.out_bias = attention.qkv_bias;
    NIBBLE_TRY(mlp.bias, f.boolean_or("mlp_bias", false));
    return Ok{};
}

Result<std::vector<bool>> sliding_layers(ConfigFields& f, int64_t layers,
                                         const std::function<bool(int64_t layer)>& otherwise) {
    NIBBLE_TRY(const auto types, f.strings("layer_types"));
    if (!types.empty() && static_cast<int64_t>(types.size()) != layers)
        return f.bad("layer_types", fmt::format("expected one per layer, {}", layers));
    std::vector<bool> slides;
    for (int64_t l = 0; l < layers; ++l) {
        if (types.empty()) {
            slides.push_back(otherwise(l));
            continue;
        }
        const std::string& type = types[static_cast<size_t>(l)];
        if (type != "full_attention" && type != "sliding_attention")
            return f.bad("layer_types", "only full_attention and sliding_attention are supported");
        slides.push_back(type == "sliding_attention");
    }
    return slides;
}

Status set_experts(ConfigFields& f, MoeConfig& moe, const char* experts, const char* chosen, int64_t least_experts) {
    NIBBLE_TRY(const int64_t count, f.integer(experts, least_experts));
    NIBBLE_TRY(const int64_t top_k, f.integer(chosen));
    if (count > 0 && top_k > count) return f.bad(chosen, fmt::format("more than {}", experts));
    moe.experts = static_cast<int>(count), moe.top_k = static_cast<int>(top_k);
    return Ok{};
}

Result<MoeConfig> read_grouped_experts(ConfigFields& f) {
    MoeConfig moe;
    moe.router = MoeConfig::Router::sigmoid;
    moe.selection_bias = true;
    NIBBLE_CHECK(set_experts(f, moe, "n_routed_experts", "num_experts_per_tok"));
    NIBBLE_TRY(const int64_t width, f.integer("moe_intermediate_size"));
    NIBBLE_TRY(const int64_t shared, f.integer_or("n_shared_experts", 0, 0));
    NIBBLE_TRY(const int64_t groups, f.integer_or("n_group", 1));
    NIBBLE_TRY(const int64_t kept, f.integer_or("topk_group", 1));
    NIBBLE_TRY(moe.normalize, f.boolean_or("norm_topk_prob", true));
    NIBBLE_TRY(const double scaling, f.factor_or("routed_scaling_factor", 1.0));
    if (width * shared > INT32_MAX)
        return f.bad("n_shared_experts", "gives more than 2147483647 rows with moe_intermediate_size");
    if (moe.experts % groups != 0 || kept > groups)
        return f.bad("n_group", "does not divide the experts, or fewer than topk_group");
    moe.expert.intermediate = static_cast<int>(width);
    moe.shared.intermediate = static_cast<int>(width * shared);
    moe.groups = static_cast<int>(groups), moe.kept_groups = static_cast<int>(kept);
    moe.routed_scaling = static_cast<float>(scaling);
    return moe;
}

Status read_step_limit(ConfigFields& f, MambaConfig& m) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    const Json* limit = f.find("time_step_limit");
    if (!limit) return Ok{};
    if (!limit->is_array() || limit->size() != 2 || !(*limit)[0].is_number() || (*limit)[1] != infinity ||
        !((*limit)[0] >= 0.0 && (*limit)[0] <= 1e6))
        return f.bad("time_step_limit", "expected [0 to 1e6, Infinity]");
    m.dt_min = (*limit)[0].get<float>();
    return Ok{};
}

Result<MambaConfig> read_mamba_heads(ConfigFields& f, int64_t inner) {
    MambaConfig m;
    NIBBLE_TRY(const int64_t heads, f.integer("mamba_n_heads"));
    const Json* dim = f.find("mamba_d_head");
    int64_t head_dim = inner / heads;
    if (dim && *dim != "auto") {
        NIBBLE_TRY(head_dim, f.integer("mamba_d_head"));
    }
    if (heads * head_dim != inner)
        return f.bad("mamba_d_head", fmt::format("times mamba_n_heads, {}, is not {}", heads, inner));
    NIBBLE_TRY(const int64_t groups, f.integer("mamba_n_groups"));
    NIBBLE_TRY(const int64_t state, f.integer("mamba_d_state"));
    NIBBLE_TRY(const int64_t conv, f.integer("mamba_d_conv"));
    NIBBLE_TRY(m.conv_bias, f.boolean_or("mamba_conv_bias", true));
    NIBBLE_TRY(m.projection_bias, f.boolean_or("mamba_proj_bias", false));
    if (heads % groups != 0) return f.bad("mamba_n_heads", fmt::format("not a multiple of the groups, {}", groups));
    m.heads = static_cast<int>(heads), m.head_dim = static_cast<int>(head_dim), m.groups = static_cast<int>(groups);
    m.state = static_cast<int>(state), m.conv = static_cast<int>(conv);
    NIBBLE_CHECK(read_step_limit(f, m));
    f.ignore("mamba_chunk_size");  // the scan has no chunks
    return m;
}

Result<std::vector<bool>> read_layer_kinds(ConfigFields& f, const char* key, int64_t layers, std::string_view first,
                                           std::string_view second) {
    NIBBLE_TRY(const auto kinds, f.strings(key));
    if (!kinds.empty() && std::ssize(kinds) != layers)
        return f.bad(key, fmt::format("expected one per layer, {}", layers));
    std::vector<bool> is_first;
    for (const std::string& kind : kinds) {
        if (kind != first && kind != second)
            return f.bad(key, fmt::format("only {} and {} are supported", first, second));
        is_first.push_back(kind == first);
    }
    return is_first;
}

LayerBlocks add_layer(Trunk& t, int64_t layer, MixerConfig attention, MixerConfig mlp) {
    const std::string base = fmt::format("{}layers.{}.", t.root, layer);
    const int number = static_cast<int>(layer);
    t.model.blocks.push_back({.layer = number,
                              .prefix = base + "self_attn",
                              .norm = base + "input_layernorm.weight",
                              .mixer = std::move(attention)});
    t.model.blocks.push_back({.layer = number,
                              .prefix = base + "mlp",
                              .norm = base + "post_attention_layernorm.weight",
                              .mixer = std::move(mlp)});
    return {*(t.model.blocks.end() - 2), t.model.blocks.back()};
}

LayerBlocks add_post_norm_layer(Trunk& t, int64_t layer, MixerConfig attention, MixerConfig mlp) {
    const LayerBlocks blocks = add_layer(t, layer, std::move(attention), std::move(mlp));
    const std::string base = fmt::format("{}layers.{}.", t.root, layer);
    blocks.attention.norm = blocks.mlp.norm = "";
    blocks.attention.post_norm = base + "post_attention_layernorm.weight";
    blocks.mlp.post_norm = base + "post_feedforward_layernorm.weight";
    return blocks;
}

LayerBlocks add_sandwich_layer(Trunk& t, int64_t layer, MixerConfig attention, MixerConfig mlp) {
    const LayerBlocks blocks = add_layer(t, layer, std::move(attention), std::move(mlp));
    const std::string base = fmt::format("{}layers.{}.", t.root, layer);
    blocks.attention.post_norm = base + "post_attention_layernorm.weight";
    blocks.mlp.norm = base + "pre_feedforward_layernorm.weight";
    blocks.mlp.post_norm = base + "post_feedforward_layernorm.weight";
    return blocks;
}

BlockConfig& add_parallel_layer(Trunk& t, int64_t layer, MixerConfig attention, MixerConfig mlp) {
    const std::string base = fmt::format("{}layers.{}", t.root, layer);
    ParallelConfig both;
    both.branches.push_back({.prefix = base + ".self_attn", .mixer = std::move(attention)});
    both.branches.push_back({.prefix = base + ".mlp", .mixer = std::move(mlp)});
    t.model.blocks.push_back({.layer = static_cast<int>(layer),
                              .prefix = base,
                              .norm = base + ".input_layernorm.weight",
                              .mixer = std::move(both)});
    return t.model.blocks.back();
}

void make_prediction_layer(Trunk& t) {
    std::vector<BlockConfig>& blocks = t.model.blocks;
    const std::string base = fmt::format("{}layers.{}.", t.root, t.layers);
    t.model.prediction = PredictionConfig{.projection = base + "eh_proj",
                                          .embedding_norm = base + "enorm.weight",
                                          .hidden_norm = base + "hnorm.weight",
                                          .norm = base + "shared_head.norm.weight",
                                          .blocks = {blocks.end() - 2, blocks.end()}};
    blocks.resize(blocks.size() - 2);
}

ModelConfig DenseModel::with_equal_layers() && {
    for (int64_t l = 0; l < trunk.layers; ++l) add_layer(trunk, l, attention, mlp);
    return std::move(trunk.model);
}

Result<DenseModel> read_dense(ConfigFields& f, const std::string& root, const RopeReading& rope) {
    DenseModel d;
    NIBBLE_TRY(d.trunk, read_trunk(f, root));
    NIBBLE_TRY(d.attention, read_heads(f, d.trunk.model.hidden));
    NIBBLE_TRY(d.mlp, read_mlp(f));
    NIBBLE_TRY(d.attention.rope, read_rope(f, d.attention.head_dim, d.trunk.model.context, rope));
    return d;
}

}  // namespace nibble
