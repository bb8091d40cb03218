// gemma3: norms before and after every mixer, all multiplying by 1 + w; five layers with a sliding window per full
// layer, each kind with its own rotary embedding.
#include "architecture/config_rope.h"
#include "architecture/family.h"

namespace nibble {
namespace {

Result<ModelConfig> read_gemma3(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(Trunk t, read_trunk(f, root));
    t.model.norm_plus_one = true;
    t.model.embedding_scale = root_of_width(t.model.hidden);
    NIBBLE_TRY(AttentionConfig a, read_heads(f, t.model.hidden));
    a.qk_norm = QkNorm::head;
    NIBBLE_TRY(a.qkv_bias, f.boolean_or("attention_bias", false));
    a.out_bias = a.qkv_bias;
    NIBBLE_TRY(a.scale, read_score_scale(f));
    MlpConfig mlp;
    NIBBLE_CHECK(f.must_be("hidden_activation", "gelu_pytorch_tanh"));
    NIBBLE_CHECK(f.must_be("use_bidirectional_attention", false));
    NIBBLE_TRY(a.soft_cap, read_cap(f, "attn_logit_softcapping"));
    NIBBLE_TRY(t.model.logit_cap, read_cap(f, "final_logit_softcapping"));
    NIBBLE_TRY(const int64_t intermediate, f.integer("intermediate_size"));
    mlp.intermediate = static_cast<int>(intermediate);
    mlp.activation = Activation::gelu_tanh;

    NIBBLE_TRY(const int64_t window, f.integer_or("sliding_window", 0));
    NIBBLE_TRY(const int64_t period, f.integer("sliding_window_pattern"));
    NIBBLE_TRY(const auto slides, sliding_layers(f, t.layers, [&](int64_t l) { return (l + 1) % period != 0; }));
    NIBBLE_TRY(const LayerRopes ropes, read_layer_ropes(f, a.head_dim, t.model.context));
    for (int64_t l = 0; l < t.layers; ++l) {
        const bool slide = slides[static_cast<size_t>(l)];
        a.window = slide ? window : 0;
        a.rope = slide ? ropes.sliding : ropes.full;
        add_sandwich_layer(t, l, a, mlp);
    }
    return std::move(t.model);
}

constexpr FieldSpelling gemma3_spellings[] = {{"hidden_activation", "hidden_act"},
                                              {"sliding_window_pattern", "_sliding_window_pattern"}};

}  // namespace

namespace family {

extern const Family gemma3{.model_type = "gemma3_text",
                           .defaults = R"({
        "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 131072, "rms_norm_eps": 1e-06,
        "tie_word_embeddings": true, "attention_bias": false, "query_pre_attn_scalar": 256, "sliding_window": 4096,
        "use_bidirectional_attention": false, "sliding_window_pattern": 6, "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0})",
                           .describe = read_gemma3,
                           .spellings = gemma3_spellings,
                           .multimodal = "gemma3",
                           .multimodal_root = "language_model.model.",
                           .gguf = "gemma3"};

}  // namespace family
}  // namespace nibble
