// qwen2, qwen3, qwen3_moe and the text part of qwen3_vl_moe: llama with biases, or with norms of queries and keys;
// layers from max_window_layers on may have a sliding window.
#include "architecture/family.h"

#include <algorithm>

namespace nibble {
namespace {

// use_sliding_window: the layers from max_window_layers on have a window, unless layer_types lists them.
Status add_qwen_layers(ConfigFields& f, DenseModel& d) {
    NIBBLE_TRY(const bool use, f.boolean_or("use_sliding_window", false));
    NIBBLE_TRY(const int64_t window, f.integer_or("sliding_window", 0));
    NIBBLE_TRY(const int64_t from, f.integer_or("max_window_layers", 0, 0));
    NIBBLE_TRY(const auto slides, sliding_layers(f, d.trunk.layers, [&](int64_t l) { return use && l >= from; }));
    for (int64_t l = 0; l < d.trunk.layers; ++l) {
        const bool slide = slides[static_cast<size_t>(l)];
        if (slide && (!use || window == 0)) return f.bad("layer_types", "sliding_attention without a sliding_window");
        d.attention.window = slide ? window : 0;
        add_layer(d.trunk, l, d.attention, d.mlp);
    }
    return Ok{};
}

Result<ModelConfig> read_qwen2(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(DenseModel d, read_dense(f, root));
    d.attention.qkv_bias = true;
    NIBBLE_CHECK(add_qwen_layers(f, d));
    return std::move(d.trunk.model);
}

Result<ModelConfig> read_qwen3(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(DenseModel d, read_dense(f, root));
    NIBBLE_CHECK(read_biases(f, d.attention, d.mlp));
    d.attention.qk_norm = QkNorm::head;
    NIBBLE_CHECK(add_qwen_layers(f, d));
    return std::move(d.trunk.model);
}

Result<ModelConfig> read_qwen3_moe(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(DenseModel d, read_dense(f, root));
    NIBBLE_CHECK(read_biases(f, d.attention, d.mlp));
    d.attention.qk_norm = QkNorm::head;
    NIBBLE_CHECK(f.must_be("use_sliding_window", false));
    // not used without use_sliding_window
    for (const char* key : {"sliding_window", "max_window_layers"}) f.ignore(key);
    MoeConfig moe;
    NIBBLE_CHECK(set_experts(f, moe, "num_local_experts", "num_experts_per_tok", 0));
    NIBBLE_TRY(const int64_t width, f.integer("moe_intermediate_size"));
    NIBBLE_TRY(moe.normalize, f.boolean_or("norm_topk_prob", false));
    moe.expert.intermediate = static_cast<int>(width);
    NIBBLE_TRY(const int64_t step, f.integer_or("decoder_sparse_step", 1));
    NIBBLE_TRY(const auto dense, f.integers("mlp_only_layers"));
    for (int64_t l = 0; l < d.trunk.layers; ++l) {
        const bool sparse = moe.experts > 0 && (l + 1) % step == 0 && !std::ranges::count(dense, l);
        add_layer(d.trunk, l, d.attention, sparse ? MixerConfig(moe) : MixerConfig(d.mlp));
    }
    return std::move(d.trunk.model);
}

constexpr FieldSpelling qwen3_moe_spellings[] = {{"num_local_experts", "num_experts"}};

}  // namespace

namespace family {

extern const Family qwen2{.model_type = "qwen2",
                          .defaults = R"({
        "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "hidden_act": "silu", "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "use_sliding_window": false, "sliding_window": 4096,
        "max_window_layers": 28, "rope_theta": 10000.0})",
                          .describe = read_qwen2,
                          .gguf = "qwen2"};

extern const Family qwen3{.model_type = "qwen3",
                          .defaults = R"({
        "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128, "hidden_act": "silu",
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-06, "tie_word_embeddings": false,
        "attention_bias": false, "use_sliding_window": false, "sliding_window": 4096, "max_window_layers": 28,
        "rope_theta": 10000.0})",
                          .describe = read_qwen3,
                          .gguf = "qwen3"};

extern const Family qwen3_moe{.model_type = "qwen3_moe",
                              .defaults = R"({
        "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24,
        "num_attention_heads": 32, "num_key_value_heads": 4, "hidden_act": "silu", "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "attention_bias": false, "use_sliding_window": false,
        "sliding_window": 4096, "decoder_sparse_step": 1, "moe_intermediate_size": 768, "num_experts_per_tok": 8,
        "num_local_experts": 128, "norm_topk_prob": false, "rope_theta": 10000.0})",
                              .describe = read_qwen3_moe,
                              .spellings = qwen3_moe_spellings,
                              .gguf = "qwen3moe"};

// The text part of Qwen3-VL: images would have three positions in its rotary embedding, text has one.
extern const Family qwen3_vl_moe{.model_type = "qwen3_vl_moe_text",
                                 .defaults = R"({
        "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
        "num_attention_heads": 16, "num_key_value_heads": 16, "hidden_act": "silu", "max_position_embeddings": 128000,
        "rms_norm_eps": 1e-06, "tie_word_embeddings": true, "attention_bias": false, "decoder_sparse_step": 1,
        "moe_intermediate_size": 1408, "num_experts_per_tok": 4, "num_local_experts": 60, "norm_topk_prob": true,
        "rope_theta": 500000.0})",
                                 .describe = read_qwen3_moe,
                                 .spellings = qwen3_moe_spellings,
                                 .multimodal = "qwen3_vl_moe",
                                 .multimodal_root = "model.language_model."};

}  // namespace family
}  // namespace nibble
