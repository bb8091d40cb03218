// olmo2 and olmo3: norms only after attention and MLP; one norm over all heads of q and one over those of k. olmo3:
// three layers with a sliding window per full layer, each kind with its own rotary embedding.
#include "architecture/family.h"

namespace nibble {
namespace {

Result<ModelConfig> read_olmo2(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(DenseModel d, read_dense(f, root));
    NIBBLE_CHECK(read_biases(f, d.attention, d.mlp));
    d.attention.qk_norm = QkNorm::joined;
    for (int64_t l = 0; l < d.trunk.layers; ++l) add_post_norm_layer(d.trunk, l, d.attention, d.mlp);
    return std::move(d.trunk.model);
}

Result<ModelConfig> read_olmo3(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(Trunk t, read_trunk(f, root));
    NIBBLE_TRY(AttentionConfig a, read_heads(f, t.model.hidden));
    NIBBLE_TRY(MlpConfig mlp, read_mlp(f));
    NIBBLE_CHECK(read_biases(f, a, mlp));
    a.qk_norm = QkNorm::joined;
    NIBBLE_TRY(const int64_t window, f.integer_or("sliding_window", 0));
    NIBBLE_TRY(const auto slides, sliding_layers(f, t.layers, [](int64_t l) { return (l + 1) % 4 != 0; }));
    NIBBLE_TRY(const LayerRopes ropes, read_layer_ropes(f, a.head_dim, t.model.context));
    for (int64_t l = 0; l < t.layers; ++l) {
        const bool slide = slides[static_cast<size_t>(l)];
        a.window = slide ? window : 0;
        a.rope = slide ? ropes.sliding : ropes.full;
        add_post_norm_layer(t, l, a, mlp);
    }
    return std::move(t.model);
}

}  // namespace

namespace family {

extern const Family olmo2{.model_type = "olmo2",
                          .defaults = R"({
        "vocab_size": 50304, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-05,
        "tie_word_embeddings": false, "attention_bias": false, "rope_theta": 10000.0})",
                          .describe = read_olmo2,
                          .gguf = "olmo2"};

extern const Family olmo3{.model_type = "olmo3",
                          .defaults = R"({
        "vocab_size": 50304, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-05,
        "tie_word_embeddings": false, "attention_bias": false, "sliding_window": 4096, "rope_theta": 500000.0,
        "rope_local_base_freq": 500000.0})",
                          .describe = read_olmo3,
                          .gguf = "olmo2"};

}  // namespace family
}  // namespace nibble
