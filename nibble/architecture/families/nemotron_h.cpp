// nemotron_h: one mixer per layer, of four kinds. Attention has no rotary embedding, whatever rope_theta is. dt is
// clamped to time_step_limit, as in the published code and serving engines; transformers' torch path clamps at
// time_step_min instead.
#include "architecture/family.h"

namespace nibble {
namespace {

// Returns one letter per layer: M Mamba-2, E experts, * attention, - MLP.
Result<std::string> read_pattern(ConfigFields& f, const char* key) {
    NIBBLE_TRY(const auto types, f.strings(key));
    std::string pattern;
    for (const std::string& type : types) {
        if (type == "linear_attention")
            pattern += 'M';
        else if (type == "full_attention")
            pattern += '*';
        else if (type == "moe")
            pattern += 'E';
        else if (type == "mlp")
            pattern += '-';
        else
            return f.bad(key, "only linear_attention, full_attention, moe and mlp are supported");
    }
    return pattern;
}

Result<MambaConfig> read_mamba(ConfigFields& f) {
    MambaConfig m;
    NIBBLE_TRY(const int64_t heads, f.integer("mamba_num_heads"));
    NIBBLE_TRY(const int64_t head_dim, f.integer("mamba_head_dim"));
    NIBBLE_TRY(const int64_t groups, f.integer("n_groups"));
    NIBBLE_TRY(const int64_t state, f.integer("ssm_state_size"));
    NIBBLE_TRY(const int64_t conv, f.integer("conv_kernel"));
    NIBBLE_TRY(m.conv_bias, f.boolean_or("use_conv_bias", true));
    NIBBLE_TRY(m.projection_bias, f.boolean_or("mamba_proj_bias", false));
    NIBBLE_TRY(const bool bias, f.boolean_or("use_bias", false));
    if (bias != m.projection_bias) return f.bad("use_bias", "differs from mamba_proj_bias");
    NIBBLE_CHECK(f.must_be("mamba_hidden_act", "silu"));
    if (heads % groups != 0) return f.bad("mamba_num_heads", fmt::format("not a multiple of the groups, {}", groups));
    m.heads = static_cast<int>(heads), m.head_dim = static_cast<int>(head_dim), m.groups = static_cast<int>(groups);
    m.state = static_cast<int>(state), m.conv = static_cast<int>(conv);
    NIBBLE_CHECK(read_step_limit(f, m));
    // Fields about initialization, precision of the cache and scheduling (the scan has no chunks), which do not change
    // the computed function.
    for (const char* key :
         {"chunk_size", "time_step_min", "time_step_max", "time_step_floor", "expand", "mamba_ssm_cache_dtype",
          "use_mamba_kernels", "rescale_prenorm_residual", "residual_in_fp32", "num_logits_to_keep"})
        f.ignore(key);
    return m;
}

Result<MoeConfig> read_moe(ConfigFields& f, Activation activation) {
    NIBBLE_TRY(MoeConfig moe, read_grouped_experts(f));
    NIBBLE_TRY(const int64_t shared_width, f.integer_or("moe_shared_expert_intermediate_size", 0, 0));
    NIBBLE_TRY(const int64_t latent, f.integer_or("moe_latent_size", 0));
    f.ignore("moe_shared_expert_overlap");
    if (moe.shared.intermediate > 0) moe.shared.intermediate = static_cast<int>(shared_width);
    for (MlpConfig* mlp : {&moe.expert, &moe.shared}) mlp->gated = false, mlp->activation = activation;
    moe.latent = static_cast<int>(latent);
    return moe;
}

Result<ModelConfig> read_nemotron_h(ConfigFields& f, const std::string& root) {
    ModelConfig model;
    NIBBLE_TRY(model.vocab, f.integer("vocab_size"));
    NIBBLE_TRY(model.hidden, f.integer("hidden_size"));
    NIBBLE_TRY(const int64_t layers, f.layers());
    NIBBLE_TRY(model.context, f.integer("max_position_embeddings"));
    NIBBLE_TRY(const double eps, f.number("layer_norm_epsilon", 0.0, 1.0));
    model.norm_eps = static_cast<float>(eps);
    NIBBLE_TRY(const bool tied, f.boolean_or("tie_word_embeddings", false));
    model.embedding = root + "embeddings.weight";
    model.norm = root + "norm_f.weight";
    model.head = tied ? model.embedding : "lm_head.weight";
    NIBBLE_TRY(const std::string pattern, read_pattern(f, "layers_block_type"));
    if (static_cast<int64_t>(pattern.size()) != layers)
        return f.bad("layers_block_type", fmt::format("expected one per layer, {}", layers));
    NIBBLE_TRY(const std::string predicting, read_pattern(f, "mtp_layers_block_type"));
    NIBBLE_TRY(const int64_t modules, f.integer_or("num_nextn_predict_layers", predicting.empty() ? 0 : 1, 0));
    const std::string all = modules > 0 ? pattern + predicting : pattern;
    const auto any = [&](char letter) { return all.find(letter) != std::string::npos; };

    NIBBLE_CHECK(f.must_be("mlp_hidden_act", "relu2"));
    NIBBLE_CHECK(f.must_be("sliding_window", nullptr));
    for (const char* key : {"rope_theta", "partial_rotary_factor", "rope_scaling", "rope_parameters"}) f.ignore(key);
    AttentionConfig attention;
    if (any('*')) {
        NIBBLE_TRY(attention, read_heads(f, model.hidden));
    } else {
        for (const char* key : {"num_attention_heads", "num_key_value_heads", "head_dim"}) f.ignore(key);
    }
    NIBBLE_TRY(attention.qkv_bias, f.boolean_or("attention_bias", false));
    attention.out_bias = attention.qkv_bias;
    MlpConfig mlp;
    mlp.gated = false, mlp.activation = Activation::relu2;
    NIBBLE_TRY(mlp.bias, f.boolean_or("mlp_bias", false));
    NIBBLE_TRY(const int64_t intermediate, f.integer_or("intermediate_size", 0, 0));
    mlp.intermediate = static_cast<int>(intermediate);
    if (any('-') && intermediate == 0) return f.bad("intermediate_size", "needed by the pattern's '-'");
    NIBBLE_TRY(const MambaConfig mamba, read_mamba(f));
    NIBBLE_TRY(const MoeConfig moe, read_moe(f, Activation::relu2));
    const auto block = [&](const std::string& base, size_t l, char letter) {
        BlockConfig b{.layer = static_cast<int>(l),
                      .prefix = fmt::format("{}layers.{}.mixer", base, l),
                      .norm = fmt::format("{}layers.{}.norm.weight", base, l)};
        switch (letter) {
            case 'M':
                b.mixer = mamba;
                break;
            case 'E':
                b.mixer = moe;
                break;
            case '*':
                b.mixer = attention;
                break;
            default:
                b.mixer = mlp;
                break;
        }
        return b;
    };
    for (size_t l = 0; l < pattern.size(); ++l) model.blocks.push_back(block(root, l, pattern[l]));
    if (modules == 0 || predicting.empty()) return model;
    // The names are next to the trunk: "mtp.layers.0" holds the tensors that combine the inputs, the last layer the
    // norm.
    const std::string base = root.substr(0, root.rfind('.', root.size() - 2) + 1) + "mtp.";
    model.prediction =
        PredictionConfig{.projection = base + "layers.0.eh_proj",
                         .embedding_norm = base + "layers.0.enorm.weight",
                         .hidden_norm = base + "layers.0.hnorm.weight",
                         .norm = fmt::format("{}layers.{}.final_layernorm.weight", base, predicting.size() - 1),
                         .hands_on_normed = true};
    for (size_t l = 0; l < predicting.size(); ++l) model.prediction->blocks.push_back(block(base, l, predicting[l]));
    return model;
}

constexpr FieldSpelling nemotron_h_spellings[] = {{"n_routed_experts", "num_local_experts"},
                                                  {"layers_block_type", "layer_types"},
                                                  {"layers_block_type", "hybrid_override_pattern"},
                                                  {"mtp_layers_block_type", "mtp_hybrid_override_pattern"},
                                                  {"layer_norm_epsilon", "norm_eps"},
                                                  {"ssm_state_size", "mamba_d_state"},
                                                  {"n_groups", "mamba_n_groups"},
                                                  {"conv_kernel", "mamba_d_conv"},
                                                  {"expand", "mamba_expand"},
                                                  {"time_step_min", "mamba_dt_min"},
                                                  {"time_step_max", "mamba_dt_max"},
                                                  {"time_step_limit", "mamba_dt_limit"},
                                                  {"time_step_floor", "mamba_dt_init_floor"},
                                                  {"use_conv_bias", "mamba_conv_bias"},
                                                  {"chunk_size", "mamba_chunk_size"}};

}  // namespace

namespace family {

extern const Family nemotron_h{.model_type = "nemotron_h",
                               .defaults = R"({
        "vocab_size": 131072, "hidden_size": 4096, "tie_word_embeddings": false, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 4096, "attention_bias": false,
        "intermediate_size": 21504, "mlp_hidden_act": "relu2", "mlp_bias": false, "ssm_state_size": 128,
        "mamba_num_heads": 128, "mamba_head_dim": 64, "mamba_hidden_act": "silu", "n_groups": 8, "conv_kernel": 4,
        "time_step_limit": [0.0, Infinity], "use_conv_bias": true, "mamba_proj_bias": false, "n_routed_experts": 8,
        "n_shared_experts": 1, "moe_intermediate_size": 7688, "moe_shared_expert_intermediate_size": 7688,
        "num_experts_per_tok": 2, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1,
        "norm_topk_prob": true, "use_bias": false, "layer_norm_epsilon": 1e-05,
        "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"]})",
                               .describe = read_nemotron_h,
                               .spellings = nemotron_h_spellings,
                               .root = "backbone.",
                               .gguf = "nemotron_h",
                               .gguf_experts = "nemotron_h_moe"};

}  // namespace family
}  // namespace nibble
