// starcoder2: LayerNorm, biases everywhere and an MLP without a gate; every layer slides where there is a window.
#include "architecture/family.h"

namespace nibble {
namespace {

Result<ModelConfig> read_starcoder2(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(Trunk t, read_trunk(f, root, "norm_epsilon"));
    t.model.layer_norm = t.model.norm_bias = true;
    NIBBLE_TRY(AttentionConfig a, read_heads(f, t.model.hidden));
    NIBBLE_TRY(a.rope, read_rope(f, a.head_dim, t.model.context));
    NIBBLE_TRY(a.window, f.integer_or("sliding_window", 0));
    NIBBLE_TRY(const bool bias, f.boolean_or("use_bias", true));
    NIBBLE_CHECK(f.must_be("hidden_act", "gelu_pytorch_tanh"));
    NIBBLE_CHECK(f.must_be("mlp_type", "default"));
    NIBBLE_CHECK(f.must_be("norm_type", "layer_norm"));
    for (const char* key : {"embedding_dropout", "residual_dropout"}) f.ignore(key);
    a.qkv_bias = a.out_bias = bias;
    NIBBLE_TRY(const int64_t intermediate, f.integer("intermediate_size"));
    const MlpConfig mlp{.intermediate = static_cast<int>(intermediate),
                        .activation = Activation::gelu_tanh,
                        .gated = false,
                        .bias = bias,
                        .up_proj = "c_fc",
                        .down_proj = "c_proj"};
    for (int64_t l = 0; l < t.layers; ++l) add_layer(t, l, a, mlp);
    return std::move(t.model);
}

}  // namespace

namespace family {

extern const Family starcoder2{.model_type = "starcoder2",
                               .defaults = R"({
        "vocab_size": 49152, "hidden_size": 3072, "intermediate_size": 12288, "num_hidden_layers": 30,
        "num_attention_heads": 24, "num_key_value_heads": 2, "hidden_act": "gelu_pytorch_tanh",
        "max_position_embeddings": 4096, "norm_epsilon": 1e-05, "tie_word_embeddings": true, "use_bias": true,
        "rope_theta": 10000.0})",
                               .describe = read_starcoder2,
                               .gguf = "starcoder2"};

}  // namespace family
}  // namespace nibble
