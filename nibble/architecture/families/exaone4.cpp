// exaone4: norms only after attention and MLP; norms of queries and keys. With a sliding window, three of four layers
// have the window, and only these have a rotary embedding; without one, every layer has it.
#include "architecture/family.h"

namespace nibble {
namespace {

// Returns the period of full attention: a number, or the length of a pattern such as "LLLG".
Result<int64_t> read_period(ConfigFields& f) {
    const Json* pattern = f.find("sliding_window_pattern");
    if (!pattern || !pattern->is_string()) return f.integer_or("sliding_window_pattern", 4, 0);
    const auto text = pattern->get<std::string>();
    if (text.empty() || text.find('G') != text.size() - 1 || text.find_first_not_of("LG") != text.npos)
        return f.bad("sliding_window_pattern", "expected a number, or letters L before one G");
    return static_cast<int64_t>(text.size());
}

Result<ModelConfig> read_exaone4(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(DenseModel d, read_dense(f, root));
    d.attention.qk_norm = QkNorm::head;
    NIBBLE_TRY(const int64_t window, f.integer_or("sliding_window", 0));
    NIBBLE_TRY(const int64_t period, read_period(f));
    NIBBLE_TRY(const auto slides, sliding_layers(f, d.trunk.layers, [&](int64_t l) {
                   return window > 0 && period > 0 && (l + 1) % period != 0;
               }));
    for (int64_t l = 0; l < d.trunk.layers; ++l) {
        const bool slide = slides[static_cast<size_t>(l)];
        if (slide && window == 0) return f.bad("layer_types", "sliding_attention without a sliding_window");
        AttentionConfig a = d.attention;
        a.window = slide ? window : 0;
        if (window > 0 && !slide) a.rope = {};
        add_post_norm_layer(d.trunk, l, a, d.mlp);
    }
    return std::move(d.trunk.model);
}

}  // namespace

namespace family {

extern const Family exaone4{.model_type = "exaone4",
                            .defaults = R"({
        "vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 16384, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "hidden_act": "silu", "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "sliding_window": 4096, "sliding_window_pattern": 4,
        "rope_theta": 10000.0})",
                            .describe = read_exaone4,
                            .gguf = "exaone4"};

}  // namespace family
}  // namespace nibble
