// llama4_text: layers that rotate see chunks, the others see everything and scale their queries by the position;
// the inputs of experts are weighed, and there is a shared expert.
#include "architecture/family.h"

#include <algorithm>

namespace nibble {
namespace {

// 1: the layer rotates.
Result<std::vector<int64_t>> rotating_layers(ConfigFields& f, int64_t layers) {
    NIBBLE_TRY(auto rotates, f.integers("no_rope_layers"));
    NIBBLE_TRY(const int64_t interval, f.integer("no_rope_layer_interval"));
    if (rotates.empty())
        for (int64_t l = 0; l < layers; ++l) rotates.push_back((l + 1) % interval != 0);
    if (std::ssize(rotates) < layers) return f.bad("no_rope_layers", fmt::format("expected {} numbers", layers));
    return rotates;
}

Result<ModelConfig> read_llama4(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(DenseModel d, read_dense(f, root));
    const int64_t layers = d.trunk.layers;
    NIBBLE_TRY(d.attention.qkv_bias, f.boolean_or("attention_bias", false));
    d.attention.out_bias = d.attention.qkv_bias;
    d.attention.rope.interleaved = true;
    NIBBLE_TRY(const bool normed, f.boolean_or("use_qk_norm", true));
    NIBBLE_TRY(const bool tuned, f.boolean_or("attn_temperature_tuning", true));
    NIBBLE_TRY(const double beta, f.number("attn_scale", 0.0, 1000.0));
    NIBBLE_TRY(const int64_t period, f.integer("floor_scale"));
    NIBBLE_TRY(const int64_t chunk, f.integer_or("attention_chunk_size", 0));
    NIBBLE_TRY(const auto rotates, rotating_layers(f, layers));
    NIBBLE_TRY(const auto types, f.strings("layer_types"));
    if (!types.empty() && std::ssize(types) != layers)
        return f.bad("layer_types", fmt::format("expected one per layer, {}", layers));

    MoeConfig moe{.router = MoeConfig::Router::sigmoid,
                  .weigh_inputs = true,
                  .normalize = false,
                  .gate = "router",
                  .shared_name = "shared_expert"};
    NIBBLE_CHECK(set_experts(f, moe, "num_local_experts", "num_experts_per_tok"));
    moe.expert = moe.shared = d.mlp;
    NIBBLE_TRY(const int64_t dense_width, f.integer("intermediate_size_mlp"));
    MlpConfig dense = d.mlp;
    dense.intermediate = static_cast<int>(dense_width);
    NIBBLE_TRY(const int64_t step, f.integer_or("interleave_moe_layer_step", 1));
    NIBBLE_TRY(const auto listed, f.integers("moe_layers"));
    const bool lists = f.has("moe_layers");
    NIBBLE_CHECK(f.must_be("for_llm_compressor", false));
    for (int64_t l = 0; l < layers; ++l) {
        AttentionConfig a = d.attention;
        const bool turns = rotates[static_cast<size_t>(l)] != 0;
        const std::string type = types.empty() ? turns ? "chunked_attention" : "full_attention" : types[size_t(l)];
        if (type != "chunked_attention" && type != "full_attention")
            return f.bad("layer_types", "only full_attention and chunked_attention are supported");
        if (type == "chunked_attention") a.chunk = chunk;
        if (turns && normed) a.qk_norm = QkNorm::late_plain;
        if (!turns) {
            a.rope = {};
            if (tuned) a.query_beta = static_cast<float>(beta), a.query_period = period, a.query_offset = 1;
        }
        const bool sparse = lists ? std::ranges::count(listed, l) > 0 : (l + 1) % step == 0;
        add_layer(d.trunk, l, a, sparse ? MixerConfig(moe) : MixerConfig(dense)).mlp.prefix =
            fmt::format("{}layers.{}.feed_forward", root, l);
    }
    return std::move(d.trunk.model);
}

}  // namespace

namespace family {

extern const Family llama4{.model_type = "llama4_text",
                           .defaults = R"({
        "vocab_size": 202048, "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
        "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
        "hidden_act": "silu", "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "tie_word_embeddings": false,
        "num_experts_per_tok": 1, "num_local_experts": 16, "interleave_moe_layer_step": 1, "use_qk_norm": true,
        "no_rope_layer_interval": 4, "attention_chunk_size": 8192, "attn_temperature_tuning": true,
        "floor_scale": 8192, "attn_scale": 0.1, "attention_bias": false, "rope_theta": 500000.0})",
                           .describe = read_llama4,
                           .multimodal = "llama4",
                           .multimodal_root = "language_model.model."};

}  // namespace family
}  // namespace nibble
