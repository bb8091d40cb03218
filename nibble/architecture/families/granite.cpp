// granite: llama with scale factors of embeddings, attention scores, residual branches and logits.
#include "architecture/family.h"

namespace nibble {

Result<float> read_granite_multipliers(ConfigFields& f, ModelConfig& model, AttentionConfig& attention) {
    NIBBLE_TRY(const double embedding, f.factor_or("embedding_multiplier", 1.0));
    NIBBLE_TRY(const double scores, f.factor_or("attention_multiplier", 1.0));
    NIBBLE_TRY(const double residual, f.factor_or("residual_multiplier", 1.0));
    NIBBLE_TRY(const double logits, f.factor_or("logits_scaling", 1.0));
    model.embedding_scale = static_cast<float>(embedding);
    model.logit_scale = static_cast<float>(1.0 / logits);
    attention.scale = static_cast<float>(scores);
    return static_cast<float>(residual);
}

namespace {

Result<ModelConfig> read_granite(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(DenseModel d, read_dense(f, root));
    NIBBLE_CHECK(read_biases(f, d.attention, d.mlp));
    NIBBLE_TRY(const float residual, read_granite_multipliers(f, d.trunk.model, d.attention));
    ModelConfig model = std::move(d).with_equal_layers();
    for (BlockConfig& block : model.blocks) block.residual_scale = residual;
    return model;
}

}  // namespace

namespace family {

extern const Family granite{.model_type = "granite",
                            .defaults = R"({
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-06,
        "tie_word_embeddings": false, "attention_bias": false, "mlp_bias": false, "embedding_multiplier": 1.0,
        "logits_scaling": 1.0, "residual_multiplier": 1.0, "attention_multiplier": 1.0, "rope_theta": 10000.0})",
                            .describe = read_granite,
                            .gguf = "granite"};

}  // namespace family
}  // namespace nibble
