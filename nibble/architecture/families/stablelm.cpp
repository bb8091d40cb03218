// stablelm: llama with LayerNorm and a rotary embedding of a quarter of the head; attention and MLP may read the same
// rows.
#include "architecture/family.h"

namespace nibble {
namespace {

Result<ModelConfig> read_stablelm(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(Trunk t, read_trunk(f, root, "layer_norm_eps"));
    t.model.layer_norm = t.model.norm_bias = true;
    NIBBLE_TRY(AttentionConfig a, read_heads(f, t.model.hidden));
    NIBBLE_TRY(a.rope, read_rope(f, a.head_dim, t.model.context, {.partial = 0.25}));
    NIBBLE_TRY(a.qkv_bias, f.boolean_or("use_qkv_bias", false));
    NIBBLE_CHECK(f.must_be("qk_layernorm", false));
    NIBBLE_TRY(const MlpConfig mlp, read_mlp(f));
    NIBBLE_TRY(const bool parallel, f.boolean_or("use_parallel_residual", false));
    for (int64_t l = 0; l < t.layers; ++l) {
        if (parallel)
            add_parallel_layer(t, l, a, mlp);
        else
            add_layer(t, l, a, mlp);
    }
    return std::move(t.model);
}

constexpr FieldSpelling stablelm_spellings[] = {{"layer_norm_eps", "norm_eps"}};

}  // namespace

namespace family {

extern const Family stablelm{.model_type = "stablelm",
                             .defaults = R"({
        "vocab_size": 50304, "hidden_size": 2560, "intermediate_size": 6912, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "hidden_act": "silu", "max_position_embeddings": 4096,
        "layer_norm_eps": 1e-05, "tie_word_embeddings": false, "use_qkv_bias": false, "qk_layernorm": false,
        "use_parallel_residual": false, "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25})",
                             .describe = read_stablelm,
                             .spellings = stablelm_spellings,
                             .gguf = "stablelm"};

}  // namespace family
}  // namespace nibble
