// smollm3: llama without a rotary embedding in every fourth layer, or in the layers for which no_rope_layers is 0.
#include "architecture/family.h"

namespace nibble {
namespace {

Result<ModelConfig> read_smollm3(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(DenseModel d, read_dense(f, root));
    NIBBLE_CHECK(read_biases(f, d.attention, d.mlp));
    NIBBLE_TRY(auto rotated, f.integers("no_rope_layers"));  // 1: with a rotary embedding, 0: without
    NIBBLE_TRY(const int64_t interval, f.integer_or("no_rope_layer_interval", 4));
    const int64_t layers = d.trunk.layers;
    if (rotated.empty())
        for (int64_t l = 0; l < layers; ++l) rotated.push_back((l + 1) % interval != 0);
    if (std::ssize(rotated) != layers)
        return f.bad("no_rope_layers", fmt::format("expected one per layer, {}", layers));
    NIBBLE_TRY(const bool use, f.boolean_or("use_sliding_window", false));
    NIBBLE_TRY(const int64_t window, f.integer_or("sliding_window", 0));
    NIBBLE_TRY(const auto slides, sliding_layers(f, layers, [&](int64_t l) {
                   return use && window > 0 && rotated[static_cast<size_t>(l)] == 0;
               }));
    for (int64_t l = 0; l < layers; ++l) {
        AttentionConfig a = d.attention;
        if (rotated[static_cast<size_t>(l)] == 0) a.rope = {};
        if (slides[static_cast<size_t>(l)]) {
            if (window == 0) return f.bad("layer_types", "sliding_attention without a sliding_window");
            a.window = window;
        }
        add_layer(d.trunk, l, a, d.mlp);
    }
    return std::move(d.trunk.model);
}

}  // namespace

namespace family {

extern const Family smollm3{.model_type = "smollm3",
                            .defaults = R"({
        "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36,
        "num_attention_heads": 16, "num_key_value_heads": 4, "hidden_act": "silu", "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-06, "tie_word_embeddings": true, "attention_bias": false, "mlp_bias": false,
        "use_sliding_window": false, "no_rope_layer_interval": 4, "rope_theta": 2000000.0})",
                            .describe = read_smollm3,
                            .gguf = "smollm3"};

}  // namespace family
}  // namespace nibble
