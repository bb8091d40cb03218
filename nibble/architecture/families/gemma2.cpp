// gemma2: gemma3 without norms of queries and keys, with soft caps of scores and logits; every second layer slides.
#include "architecture/family.h"

namespace nibble {
namespace {

Result<ModelConfig> read_gemma2(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(Trunk t, read_trunk(f, root));
    t.model.norm_plus_one = true;
    t.model.embedding_scale = root_of_width(t.model.hidden);
    NIBBLE_TRY(t.model.logit_cap, read_cap(f, "final_logit_softcapping"));
    NIBBLE_TRY(AttentionConfig a, read_heads(f, t.model.hidden));
    NIBBLE_TRY(a.qkv_bias, f.boolean_or("attention_bias", false));
    a.out_bias = a.qkv_bias;
    NIBBLE_TRY(a.scale, read_score_scale(f));
    NIBBLE_TRY(a.soft_cap, read_cap(f, "attn_logit_softcapping"));
    NIBBLE_TRY(a.rope, read_rope(f, a.head_dim, t.model.context));
    NIBBLE_CHECK(f.must_be("use_bidirectional_attention", false));
    NIBBLE_CHECK(f.must_be("hidden_activation", "gelu_pytorch_tanh"));
    f.ignore("hidden_act");  // published files say "gelu" there, which transformers does not read
    MlpConfig mlp;
    mlp.activation = Activation::gelu_tanh;
    NIBBLE_TRY(const int64_t intermediate, f.integer("intermediate_size"));
    mlp.intermediate = static_cast<int>(intermediate);
    NIBBLE_TRY(const int64_t window, f.integer_or("sliding_window", 0));
    NIBBLE_TRY(const auto slides, sliding_layers(f, t.layers, [](int64_t l) { return l % 2 == 0; }));
    for (int64_t l = 0; l < t.layers; ++l) {
        a.window = slides[static_cast<size_t>(l)] ? window : 0;
        add_sandwich_layer(t, l, a, mlp);
    }
    return std::move(t.model);
}

}  // namespace

namespace family {

extern const Family gemma2{.model_type = "gemma2",
                           .defaults = R"({
        "vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 8192, "rms_norm_eps": 1e-06,
        "tie_word_embeddings": true, "attention_bias": false, "query_pre_attn_scalar": 256, "sliding_window": 4096,
        "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0, "rope_theta": 10000.0})",
                           .describe = read_gemma2,
                           .gguf = "gemma2"};

}  // namespace family
}  // namespace nibble
