// ministral3: mistral with queries scaled by their position.
#include "architecture/family.h"

namespace nibble {
namespace {

Result<ModelConfig> read_ministral3(ConfigFields& f, const std::string& root) {
    float beta = 0;
    int64_t period = 0;
    NIBBLE_TRY(DenseModel d, read_dense(f, root, {.query_beta = &beta, .query_period = &period}));
    d.attention.query_beta = beta, d.attention.query_period = period;
    NIBBLE_TRY(d.attention.window, f.integer_or("sliding_window", 0));
    return std::move(d).with_equal_layers();
}

}  // namespace

namespace family {

extern const Family ministral3{.model_type = "ministral3",
                               .defaults = R"({
        "vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 34,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "hidden_act": "silu",
        "max_position_embeddings": 262144, "rms_norm_eps": 1e-05, "tie_word_embeddings": false,
        "rope_theta": 1000000.0,
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 16.0, "beta_fast": 32.0,
            "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 16384,
            "max_position_embeddings": 262144, "llama_4_scaling_beta": 0.1}})",
                               .describe = read_ministral3,
                               .multimodal = "mistral3",
                               .multimodal_root = "language_model.model.",
                               .gguf = "mistral3"};

}  // namespace family
}  // namespace nibble
