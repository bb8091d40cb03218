// cohere2: attention and MLP read the same rows after one LayerNorm without a bias; three sliding layers to a full one,
// and only the sliding ones rotate.
#include "architecture/family.h"

namespace nibble {
namespace {

Result<ModelConfig> read_cohere2(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(Trunk t, read_trunk(f, root, "layer_norm_eps"));
    t.model.layer_norm = true;
    NIBBLE_TRY(AttentionConfig a, read_heads(f, t.model.hidden));
    NIBBLE_TRY(MlpConfig mlp, read_mlp(f));
    NIBBLE_CHECK(read_biases(f, a, mlp));
    NIBBLE_TRY(Rope rope, read_rope(f, a.head_dim, t.model.context));
    rope.interleaved = true;
    NIBBLE_TRY(const double scale, f.factor("logit_scale"));
    t.model.logit_scale = static_cast<float>(scale);
    NIBBLE_CHECK(f.must_be("use_qk_norm", false));
    NIBBLE_CHECK(f.must_be("use_parallel_block", true));
    NIBBLE_CHECK(f.must_be("use_gated_activation", true));
    NIBBLE_CHECK(f.must_be("use_embedding_sharing", true));
    NIBBLE_CHECK(f.must_be("use_parallel_embedding", false));
    NIBBLE_CHECK(f.must_be("position_embedding_type", "rope_gptj"));
    NIBBLE_CHECK(f.must_be("rotary_pct", 1.0));
    NIBBLE_CHECK(f.must_be("order_of_interleaved_layers", "local_attn_first"));
    for (const char* key : {"layer_switch", "rope_scaling"}) f.ignore(key);  // follows from sliding_window_pattern
    NIBBLE_TRY(const int64_t window, f.integer_or("sliding_window", 0));
    NIBBLE_TRY(const int64_t period, f.integer_or("sliding_window_pattern", 4));
    NIBBLE_TRY(const auto slides, sliding_layers(f, t.layers, [&](int64_t l) { return (l + 1) % period != 0; }));
    for (int64_t l = 0; l < t.layers; ++l) {
        const bool slide = slides[static_cast<size_t>(l)];
        a.window = slide ? window : 0;
        a.rope = slide ? rope : Rope{};
        add_parallel_layer(t, l, a, mlp);
    }
    return std::move(t.model);
}

constexpr FieldSpelling cohere2_spellings[] = {{"sliding_window_pattern", "_sliding_window_pattern"}};

}  // namespace

namespace family {

extern const Family cohere2{.model_type = "cohere2",
                            .defaults = R"({
        "vocab_size": 256000, "hidden_size": 8192, "intermediate_size": 22528, "logit_scale": 0.0625,
        "num_hidden_layers": 40, "num_attention_heads": 64, "hidden_act": "silu", "max_position_embeddings": 8192,
        "layer_norm_eps": 1e-05, "tie_word_embeddings": true, "attention_bias": false, "sliding_window": 4096,
        "rope_theta": 10000.0})",
                            .describe = read_cohere2,
                            .spellings = cohere2_spellings,
                            .gguf = "cohere2"};

}  // namespace family
}  // namespace nibble
