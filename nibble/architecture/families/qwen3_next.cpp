// qwen3_next, qwen3_5 and qwen3_5_moe: after every three layers with a gated delta net follows one with attention. Its
// output is gated, and a quarter of each head is rotated. All norms multiply by 1 + w, except the one inside the gated
// delta net.
#include "architecture/family.h"

#include <algorithm>

namespace nibble {
namespace {

Result<GatedDeltaConfig> read_gated_delta(ConfigFields& f) {
    GatedDeltaConfig g;
    NIBBLE_TRY(const int64_t key_heads, f.integer("linear_num_key_heads"));
    NIBBLE_TRY(const int64_t value_heads, f.integer("linear_num_value_heads"));
    NIBBLE_TRY(const int64_t key_dim, f.integer("linear_key_head_dim"));
    NIBBLE_TRY(const int64_t value_dim, f.integer("linear_value_head_dim"));
    NIBBLE_TRY(const int64_t conv, f.integer("linear_conv_kernel_dim"));
    NIBBLE_TRY(const std::string gate, f.string_or("output_gate_type", "swish"));
    if (gate != "swish" && gate != "silu") return f.bad("output_gate_type", "only swish is supported");
    if (value_heads % key_heads != 0)
        return f.bad("linear_num_value_heads", fmt::format("not a multiple of the key heads, {}", key_heads));
    g.key_heads = static_cast<int>(key_heads), g.value_heads = static_cast<int>(value_heads);
    g.key_dim = static_cast<int>(key_dim), g.value_dim = static_cast<int>(value_dim), g.conv = static_cast<int>(conv);
    f.ignore("mamba_ssm_dtype");  // precision of a cache: states are FP32
    return g;
}

// Returns whether each layer has attention: as layer_types lists, else every full_attention_interval-th layer.
Result<std::vector<bool>> attention_layers(ConfigFields& f, int64_t layers) {
    NIBBLE_TRY(const auto types, f.strings("layer_types"));
    NIBBLE_TRY(const int64_t interval, f.integer_or("full_attention_interval", 4));
    if (!types.empty() && static_cast<int64_t>(types.size()) != layers)
        return f.bad("layer_types", fmt::format("expected one per layer, {}", layers));
    std::vector<bool> attention;
    for (int64_t l = 0; l < layers; ++l) {
        const std::string* type = types.empty() ? nullptr : &types[static_cast<size_t>(l)];
        if (type && *type != "full_attention" && *type != "linear_attention")
            return f.bad("layer_types", "only full_attention and linear_attention are supported");
        attention.push_back(type ? *type == "full_attention" : (l + 1) % interval == 0);
    }
    return attention;
}

Result<MoeConfig> read_gated_experts(ConfigFields& f) {
    MoeConfig moe;
    NIBBLE_CHECK(set_experts(f, moe, "num_experts", "num_experts_per_tok", 0));
    NIBBLE_TRY(const int64_t width, f.integer("moe_intermediate_size"));
    NIBBLE_TRY(const int64_t shared, f.integer("shared_expert_intermediate_size"));
    NIBBLE_TRY(moe.normalize, f.boolean_or("norm_topk_prob", true));
    moe.expert.intermediate = static_cast<int>(width), moe.shared.intermediate = static_cast<int>(shared);
    moe.shared_name = "shared_expert", moe.shared_gate = true;
    return moe;
}

// Adds the tensors "mtp.*": an attention layer with the model's kind of feed-forward network.
void add_prediction(Trunk& t, const AttentionConfig& attention, const MixerConfig& mlp) {
    Trunk inner{.root = "mtp."};
    add_layer(inner, 0, attention, mlp);
    t.model.prediction = PredictionConfig{.projection = "mtp.fc",
                                          .embedding_norm = "mtp.pre_fc_norm_embedding.weight",
                                          .hidden_norm = "mtp.pre_fc_norm_hidden.weight",
                                          .norm = "mtp.norm.weight",
                                          .hands_on_normed = true,
                                          .blocks = std::move(inner.model.blocks)};
}

struct QwenNextKind {
    bool by_key_head = false;  // rows of the gated delta net's projections
    bool experts = false;
};

Result<ModelConfig> read_qwen_next(ConfigFields& f, const std::string& root, const QwenNextKind& kind) {
    NIBBLE_TRY(Trunk t, read_trunk(f, root));
    t.model.norm_plus_one = true;
    NIBBLE_TRY(AttentionConfig a, read_heads(f, t.model.hidden));
    NIBBLE_CHECK(f.must_be("attn_output_gate", true));
    a.output_gate = true, a.qk_norm = QkNorm::head;
    NIBBLE_TRY(a.qkv_bias, f.boolean_or("attention_bias", false));
    a.out_bias = a.qkv_bias;
    NIBBLE_TRY(a.rope, read_rope(f, a.head_dim, t.model.context, {.partial = 0.25}));
    NIBBLE_CHECK(f.must_be("use_sliding_window", false));
    for (const char* key : {"sliding_window", "max_window_layers"}) f.ignore(key);
    NIBBLE_TRY(GatedDeltaConfig delta, read_gated_delta(f));
    delta.by_key_head = kind.by_key_head;
    NIBBLE_TRY(const auto attention, attention_layers(f, t.layers));

    MlpConfig mlp;
    MoeConfig moe;
    if (kind.experts) {
        NIBBLE_TRY(moe, read_gated_experts(f));
    }
    NIBBLE_TRY(const int64_t step, f.integer_or("decoder_sparse_step", 1));
    NIBBLE_TRY(const auto dense, f.integers("mlp_only_layers"));
    const auto sparse = [&](int64_t l) {
        return moe.experts > 0 && (l + 1) % step == 0 && !std::ranges::count(dense, l);
    };
    bool any_dense = false;
    for (int64_t l = 0; l < t.layers; ++l) any_dense = any_dense || !sparse(l);
    NIBBLE_CHECK(f.must_be("hidden_act", "silu"));
    NIBBLE_TRY(const int64_t intermediate, f.integer_or("intermediate_size", 0, 0));
    if (any_dense && intermediate == 0) return f.bad("intermediate_size", "layers without experts need it");
    mlp.intermediate = static_cast<int>(intermediate);
    for (int64_t l = 0; l < t.layers; ++l) {
        const MixerConfig feed_forward = sparse(l) ? MixerConfig(moe) : MixerConfig(mlp);
        if (attention[static_cast<size_t>(l)]) {
            add_layer(t, l, a, feed_forward);
        } else {
            add_layer(t, l, delta, feed_forward).attention.prefix = fmt::format("{}layers.{}.linear_attn", root, l);
        }
    }
    NIBBLE_TRY(const int64_t predicting, f.integer_or("num_nextn_predict_layers", 0, 0));
    NIBBLE_CHECK(f.must_be("mtp_use_dedicated_embeddings", false));
    if (predicting > 0) add_prediction(t, a, kind.experts ? MixerConfig(moe) : MixerConfig(mlp));
    return std::move(t.model);
}

Result<ModelConfig> read_qwen3_next(ConfigFields& f, const std::string& root) {
    return read_qwen_next(f, root, {.by_key_head = true, .experts = true});
}
Result<ModelConfig> read_qwen3_5(ConfigFields& f, const std::string& root) { return read_qwen_next(f, root, {}); }
Result<ModelConfig> read_qwen3_5_moe(ConfigFields& f, const std::string& root) {
    return read_qwen_next(f, root, {.experts = true});
}

constexpr FieldSpelling qwen3_5_spellings[] = {{"num_nextn_predict_layers", "mtp_num_hidden_layers"}};

}  // namespace

namespace family {

extern const Family qwen3_next{.model_type = "qwen3_next",
                               .defaults = R"({
        "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 48,
        "num_attention_heads": 16, "num_key_value_heads": 2, "hidden_act": "silu", "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "attention_bias": false, "head_dim": 256,
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "decoder_sparse_step": 1,
        "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "num_experts_per_tok": 10,
        "num_experts": 512, "norm_topk_prob": true, "rope_theta": 10000.0, "partial_rotary_factor": 0.25})",
                               .describe = read_qwen3_next,
                               .gguf = "qwen3next"};

extern const Family qwen3_5{.model_type = "qwen3_5_text",
                            .defaults = R"({
        "vocab_size": 248320, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 32,
        "num_attention_heads": 16, "num_key_value_heads": 4, "hidden_act": "silu", "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "attention_bias": false, "head_dim": 256,
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "rope_theta": 10000.0, "partial_rotary_factor": 0.25})",
                            .describe = read_qwen3_5,
                            .spellings = qwen3_5_spellings,
                            .multimodal = "qwen3_5",
                            .multimodal_root = "model.language_model.",
                            .gguf = "qwen35"};

extern const Family qwen3_5_moe{.model_type = "qwen3_5_moe_text",
                                .defaults = R"({
        "vocab_size": 248320, "hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads": 16,
        "num_key_value_heads": 2, "hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-06,
        "tie_word_embeddings": false, "attention_bias": false, "head_dim": 256, "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16,
        "linear_num_value_heads": 32, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
        "num_experts_per_tok": 8, "num_experts": 256, "rope_theta": 10000.0, "partial_rotary_factor": 0.25})",
                                .describe = read_qwen3_5_moe,
                                .spellings = qwen3_5_spellings,
                                .multimodal = "qwen3_5_moe",
                                .multimodal_root = "model.language_model.",
                                .gguf = "qwen35moe"};

}  // namespace family
}  // namespace nibble
