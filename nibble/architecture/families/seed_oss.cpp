// seed_oss: llama with biases of q, k and v, and of o if the config has them.
#include "architecture/family.h"

namespace nibble {
namespace {

Result<ModelConfig> read_seed_oss(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(DenseModel d, read_dense(f, root));
    NIBBLE_TRY(d.attention.qkv_bias, f.boolean_or("attention_bias", true));
    NIBBLE_TRY(d.attention.out_bias, f.boolean_or("attention_out_bias", false));
    NIBBLE_TRY(d.mlp.bias, f.boolean_or("mlp_bias", false));
    f.ignore("residual_dropout");
    return std::move(d).with_equal_layers();
}

}  // namespace

namespace family {

extern const Family seed_oss{.model_type = "seed_oss",
                             .defaults = R"({
        "vocab_size": 155136, "hidden_size": 4096, "intermediate_size": 27648, "num_hidden_layers": 64,
        "num_attention_heads": 80, "num_key_value_heads": 8, "head_dim": 128, "hidden_act": "silu",
        "max_position_embeddings": 524288, "rms_norm_eps": 1e-06, "tie_word_embeddings": false,
        "attention_bias": true, "attention_out_bias": false, "mlp_bias": false, "rope_theta": 10000.0})",
                             .describe = read_seed_oss,
                             .gguf = "seed_oss"};

}  // namespace family
}  // namespace nibble
