// llama, mistral and mixtral: attention and a gated MLP (mixtral: experts) in every layer.
#include "architecture/family.h"

namespace nibble {
namespace {

Result<ModelConfig> read_llama(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(DenseModel d, read_dense(f, root));
    NIBBLE_CHECK(read_biases(f, d.attention, d.mlp));
    return std::move(d).with_equal_layers();
}

Result<ModelConfig> read_mistral(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(DenseModel d, read_dense(f, root));
    NIBBLE_CHECK(read_biases(f, d.attention, d.mlp));
    NIBBLE_TRY(d.attention.window, f.integer_or("sliding_window", 0));
    return std::move(d).with_equal_layers();
}

Result<ModelConfig> read_mixtral(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(DenseModel d, read_dense(f, root));
    NIBBLE_TRY(d.attention.window, f.integer_or("sliding_window", 0));
    MoeConfig moe;
    NIBBLE_CHECK(set_experts(f, moe, "num_local_experts", "num_experts_per_tok"));
    moe.expert = d.mlp;
    moe.expert.gate_proj = "w1", moe.expert.up_proj = "w3", moe.expert.down_proj = "w2";
    for (int64_t l = 0; l < d.trunk.layers; ++l)
        add_layer(d.trunk, l, d.attention, moe).mlp.prefix = fmt::format("{}layers.{}.block_sparse_moe", root, l);
    return std::move(d.trunk.model);
}

constexpr FieldSpelling mixtral_spellings[] = {{"num_local_experts", "num_experts"}};

}  // namespace

namespace family {

extern const Family llama{.model_type = "llama",
                          .defaults = R"({
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-06,
        "tie_word_embeddings": false, "attention_bias": false, "mlp_bias": false, "rope_theta": 10000.0})",
                          .describe = read_llama,
                          .gguf = "llama"};

extern const Family mistral{.model_type = "mistral",
                            .defaults = R"({
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_act": "silu", "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "sliding_window": 4096, "rope_theta": 10000.0})",
                            .describe = read_mistral,
                            .multimodal = "mistral3",
                            .multimodal_root = "language_model.model.",
                            .gguf = "llama"};

extern const Family mixtral{.model_type = "mixtral",
                            .defaults = R"({
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_act": "silu", "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "num_experts_per_tok": 2, "num_local_experts": 8,
        "rope_theta": 1000000.0})",
                            .describe = read_mixtral,
                            .spellings = mixtral_spellings,
                            .gguf = "llama"};

}  // namespace family
}  // namespace nibble
