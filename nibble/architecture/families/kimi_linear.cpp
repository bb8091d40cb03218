// kimi_linear: Kimi delta attention in most layers, latent attention without a rotary embedding in the others; experts
// with a sigmoid router.
#include "architecture/family.h"

#include <algorithm>

namespace nibble {
namespace {

// The part linear_attn_config of published files, whose layers count from 1.
struct DeltaFields {
    std::optional<int64_t> heads, head_dim, taps;
    std::vector<int64_t> full, delta;
};

Result<DeltaFields> read_delta_fields(ConfigFields& config) {
    DeltaFields d;
    const Json* object = config.find("linear_attn_config");
    if (!object) return d;
    if (!object->is_object()) return config.bad("linear_attn_config", "expected an object");
    ConfigFields f(*object, "config.json: linear_attn_config");
    NIBBLE_TRY(d.heads, f.integer("num_heads"));
    NIBBLE_TRY(d.head_dim, f.integer("head_dim"));
    NIBBLE_TRY(d.taps, f.integer("short_conv_kernel_size"));
    NIBBLE_TRY(d.full, f.integers("full_attn_layers"));
    NIBBLE_TRY(d.delta, f.integers("kda_layers"));
    NIBBLE_CHECK(f.all_read());
    return d;
}

// Returns whether each layer has latent attention.
Result<std::vector<bool>> read_full_layers(ConfigFields& f, const DeltaFields& d, int64_t layers) {
    NIBBLE_TRY(auto full, read_layer_kinds(f, "layer_types", layers, "full_attention", "linear_attention"));
    if (!full.empty()) return full;
    for (int64_t l = 0; l < layers; ++l) {
        const bool latent = std::ranges::count(d.full, l + 1) > 0;
        if (!d.full.empty() && latent == (std::ranges::count(d.delta, l + 1) > 0))
            return f.bad("linear_attn_config", fmt::format("layer {} must be in one of its two lists", l + 1));
        full.push_back(d.full.empty() ? l > 0 && l % 4 == 0 : latent);
    }
    return full;
}

Result<GatedDeltaConfig> read_delta(ConfigFields& f, const DeltaFields& d) {
    GatedDeltaConfig g{.by_channel = true};
    NIBBLE_TRY(const int64_t heads, f.integer_or("linear_num_heads", 32));
    NIBBLE_TRY(const int64_t head_dim, f.integer_or("linear_head_dim", 128));
    NIBBLE_TRY(const int64_t taps, f.integer_or("linear_conv_kernel_dim", 4));
    g.key_heads = g.value_heads = static_cast<int>(d.heads.value_or(heads));
    g.key_dim = g.value_dim = static_cast<int>(d.head_dim.value_or(head_dim));
    g.conv = static_cast<int>(d.taps.value_or(taps));
    return g;
}

Result<ModelConfig> read_kimi_linear(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(Trunk t, read_trunk(f, root));
    NIBBLE_TRY(const MlpConfig mlp, read_mlp(f));
    NIBBLE_TRY(LatentAttentionConfig latent, read_latent_heads(f));
    NIBBLE_CHECK(f.must_be("mla_use_nope", true));
    latent.rotates = false;
    NIBBLE_TRY(MoeConfig moe, read_grouped_experts(f));
    moe.expert.gate_proj = "w1", moe.expert.up_proj = "w3", moe.expert.down_proj = "w2";
    NIBBLE_CHECK(f.must_be("moe_router_activation_func", "sigmoid"));
    NIBBLE_CHECK(f.must_be("moe_layer_freq", 1));
    NIBBLE_TRY(const DeltaFields fields, read_delta_fields(f));
    NIBBLE_TRY(const GatedDeltaConfig delta, read_delta(f, fields));
    NIBBLE_TRY(const auto full, read_full_layers(f, fields, t.layers));
    NIBBLE_TRY(auto dense, read_layer_kinds(f, "mlp_layer_types", t.layers, "dense", "sparse"));
    NIBBLE_TRY(const int64_t leading, f.integer_or("first_k_dense_replace", 1, 0));
    if (dense.empty())
        for (int64_t l = 0; l < t.layers; ++l) dense.push_back(l < leading);
    // Groups of experts are read above; nothing is rotated.
    for (const char* key : {"use_grouped_topk", "rope_theta", "rope_scaling", "rope_parameters"}) f.ignore(key);
    for (int64_t l = 0; l < t.layers; ++l) {
        const auto at = static_cast<size_t>(l);
        const LayerBlocks blocks = add_layer(t, l, full[at] ? MixerConfig(latent) : MixerConfig(delta),
                                             dense[at] ? MixerConfig(mlp) : MixerConfig(moe));
        if (!dense[at]) blocks.mlp.prefix = fmt::format("{}layers.{}.block_sparse_moe", root, l);
    }
    return std::move(t.model);
}

constexpr FieldSpelling kimi_linear_spellings[] = {{"max_position_embeddings", "model_max_length"},
                                                   {"n_routed_experts", "num_experts"},
                                                   {"n_routed_experts", "num_local_experts"},
                                                   {"num_experts_per_tok", "num_experts_per_token"},
                                                   {"n_shared_experts", "num_shared_experts"},
                                                   {"n_group", "num_expert_group"},
                                                   {"norm_topk_prob", "moe_renormalize"}};

}  // namespace

namespace family {

extern const Family kimi_linear{.model_type = "kimi_linear",
                                .defaults = R"({
        "vocab_size": 163840, "hidden_size": 2304, "intermediate_size": 9216, "moe_intermediate_size": 1024,
        "num_hidden_layers": 27, "num_attention_heads": 32, "num_key_value_heads": 32, "n_shared_experts": 1,
        "routed_scaling_factor": 2.446, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "qk_nope_head_dim": 128, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 8, "norm_topk_prob": true,
        "hidden_act": "silu", "max_position_embeddings": 1048576, "rms_norm_eps": 1e-05,
        "tie_word_embeddings": false, "attention_bias": false, "n_routed_experts": 256, "linear_num_heads": 32,
        "linear_head_dim": 128, "linear_conv_kernel_dim": 4})",
                                .describe = read_kimi_linear,
                                .spellings = kimi_linear_spellings};

}  // namespace family
}  // namespace nibble
