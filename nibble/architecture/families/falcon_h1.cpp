// falcon_h1: Mamba-2 and attention read the same rows in every layer; multipliers on almost every product.
#include "architecture/config_rope.h"
#include "architecture/family.h"

namespace nibble {
namespace {

// Reads a list of `count` multipliers; absent: 1.
Result<std::vector<double>> read_factors(ConfigFields& f, const char* key, size_t count) {
    NIBBLE_TRY(auto factors, f.numbers(key));
    if (factors.empty()) factors.assign(count, 1.0);
    if (factors.size() != count) return f.bad(key, fmt::format("expected {} numbers", count));
    return factors;
}

Result<MambaConfig> read_falcon_mamba(ConfigFields& f, int64_t hidden) {
    NIBBLE_TRY(const int64_t expand, f.integer("mamba_expand"));
    NIBBLE_TRY(const int64_t inner, f.integer_or("mamba_d_ssm", expand * hidden));
    NIBBLE_TRY(MambaConfig m, read_mamba_heads(f, inner));
    NIBBLE_TRY(const bool out_bias, f.boolean_or("projectors_bias", false));
    if (out_bias != m.projection_bias) return f.bad("projectors_bias", "differs from mamba_proj_bias");
    NIBBLE_TRY(const bool norm, f.boolean_or("mamba_rms_norm", false));
    NIBBLE_TRY(const bool before, f.boolean_or("mamba_norm_before_gate", true));
    m.norm = MambaConfig::Norm::none;
    if (norm) m.norm = before ? MambaConfig::Norm::before_gate : MambaConfig::Norm::after_gate;
    NIBBLE_TRY(const auto scales, read_factors(f, "ssm_multipliers", m.scales.size()));
    for (size_t i = 0; i < scales.size(); ++i) m.scales[i] = static_cast<float>(scales[i]);
    f.ignore("mamba_use_mlp");
    return m;
}

Result<ModelConfig> read_falcon_h1(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(DenseModel d, read_dense(f, root));
    NIBBLE_CHECK(read_biases(f, d.attention, d.mlp));
    d.trunk.model.norm = root + "final_layernorm.weight";
    NIBBLE_TRY(const MambaConfig mamba, read_falcon_mamba(f, d.trunk.model.hidden));
    const auto factor = [&](const char* key, float& to) -> Status {
        NIBBLE_TRY(const double by, f.factor_or(key, 1.0));
        to = static_cast<float>(by);
        return Ok{};
    };
    NIBBLE_CHECK(factor("embedding_multiplier", d.trunk.model.embedding_scale));
    NIBBLE_CHECK(factor("lm_head_multiplier", d.trunk.model.logit_scale));
    NIBBLE_CHECK(factor("key_multiplier", d.attention.key_scale));
    Branch ssm{.mixer = mamba}, attention{.mixer = d.attention};
    NIBBLE_CHECK(factor("ssm_in_multiplier", ssm.in_scale));
    NIBBLE_CHECK(factor("ssm_out_multiplier", ssm.out_scale));
    NIBBLE_CHECK(factor("attention_in_multiplier", attention.in_scale));
    NIBBLE_CHECK(factor("attention_out_multiplier", attention.out_scale));
    NIBBLE_TRY(const auto of_mlp, read_factors(f, "mlp_multipliers", 2));
    d.mlp.gate_scale = static_cast<float>(of_mlp[0]);
    for (const char* key : {"num_logits_to_keep", "layers_block_type"}) f.ignore(key);  // every layer is alike
    for (int64_t l = 0; l < d.trunk.layers; ++l) {
        const std::string base = fmt::format("{}layers.{}", root, l);
        ssm.prefix = base + ".mamba", attention.prefix = base + ".self_attn";
        const LayerBlocks blocks = add_layer(d.trunk, l, ParallelConfig{.branches = {ssm, attention}}, d.mlp);
        blocks.attention.prefix = base;
        blocks.mlp.prefix = base + ".feed_forward";
        blocks.mlp.norm = base + ".pre_ff_layernorm.weight";
        blocks.mlp.residual_scale = static_cast<float>(of_mlp[1]);
    }
    return std::move(d.trunk.model);
}

constexpr FieldSpelling falcon_h1_spellings[] = {{"layers_block_type", "layer_types"}};

}  // namespace

namespace family {

extern const Family falcon_h1{.model_type = "falcon_h1",
                              .defaults = R"({
        "vocab_size": 128000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_act": "silu", "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "attention_bias": false, "mlp_bias": false,
        "projectors_bias": false, "mamba_d_ssm": 1024, "mamba_n_heads": 128, "mamba_d_head": "auto",
        "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_conv_bias": true,
        "mamba_proj_bias": false, "mamba_norm_before_gate": true, "mamba_rms_norm": false,
        "time_step_limit": [0.0, Infinity], "lm_head_multiplier": 1.0, "embedding_multiplier": 1.0,
        "mlp_multipliers": [1.0, 1.0], "key_multiplier": 1.0, "attention_out_multiplier": 1.0,
        "attention_in_multiplier": 1.0, "ssm_multipliers": [1.0, 1.0, 1.0, 1.0, 1.0], "ssm_in_multiplier": 1.0,
        "ssm_out_multiplier": 1.0, "rope_theta": 10000.0})",
                              .describe = read_falcon_h1,
                              .spellings = falcon_h1_spellings};

}  // namespace family
}  // namespace nibble
