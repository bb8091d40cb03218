// phi3: llama with q, k and v in one matrix, gate and up in another. A part of each head may have the rotary embedding,
// and every layer has a sliding window if one is configured.
#include "architecture/family.h"

namespace nibble {
namespace {

Result<ModelConfig> read_phi3(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(const int64_t original, f.integer_or("original_max_position_embeddings", 0));
    NIBBLE_TRY(DenseModel d,
               read_dense(f, root, {.partial = 1.0, .original_context = original, .longrope_names = true}));
    d.attention.qkv_proj = "qkv_proj";
    d.mlp.gate_up_proj = "gate_up_proj";
    NIBBLE_TRY(d.attention.window, f.integer_or("sliding_window", 0));
    NIBBLE_CHECK(f.must_be("attention_bias", false));
    NIBBLE_CHECK(f.must_be("lm_head_bias", false));
    return std::move(d).with_equal_layers();
}

}  // namespace

namespace family {

extern const Family phi3{.model_type = "phi3",
                         .defaults = R"({
        "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
        "num_attention_heads": 32, "hidden_act": "silu", "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "tie_word_embeddings": false,
        "rope_theta": 10000.0, "partial_rotary_factor": 1.0})",
                         .describe = read_phi3};

}  // namespace family
}  // namespace nibble
