// gemma4: norms before and after every mixer and a scalar per layer; sliding and full layers differ in heads and rotary
// embedding. 31B and 26B-A4B: full layers take their values from the keys' projection. 26B-A4B: experts in addition to
// the MLP. E2B and E4B: per-layer embeddings, and the last layers attend to keys and values of earlier ones.
#include "architecture/family.h"

#include <algorithm>
#include <charconv>

namespace nibble {
namespace {

struct Layers {
    std::vector<bool> slides;
    int64_t first_sharing = 0;  // from here on layers have no keys and values of their own
};

// per_layer_config: {"05": {"head_dim": 512}}, as transformers 5 writes it: numbers of layers in one width.
Result<int64_t> override_of(ConfigFields& f, int64_t layer, const char* key, int64_t otherwise) {
    const Json* all = f.find("per_layer_config");
    if (!all) return otherwise;
    if (!all->is_object()) return f.bad("per_layer_config", "expected an object");
    const auto names_layer = [&](const std::string& name) {
        int64_t number = -1;
        const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
        return error == std::errc() && end == name.data() + name.size() && number == layer;
    };
    const Json* fields = nullptr;
    for (const auto& [name, value] : all->items())
        if (names_layer(name)) fields = &value;
    if (!fields || !fields->is_object() || !fields->contains(key)) return otherwise;
    const Json& value = (*fields)[key];
    if (!value.is_number_integer() || value < 1 || value > INT32_MAX)
        return f.bad("per_layer_config", fmt::format("layer {}: {} is not a whole number above 0", layer, key));
    return value.get<int64_t>();
}

Result<AttentionConfig> read_full(ConfigFields& f, const AttentionConfig& sliding, int64_t layer, bool one_projection) {
    AttentionConfig a = sliding;
    NIBBLE_TRY(const int64_t dim, f.integer_or("global_head_dim", f.has("per_layer_config") ? a.head_dim : 512));
    NIBBLE_TRY(const int64_t global_heads, f.integer_or("num_global_key_value_heads", a.kv_heads));
    NIBBLE_TRY(const int64_t head_dim, override_of(f, layer, "head_dim", dim));
    NIBBLE_TRY(const int64_t kv_heads,
               override_of(f, layer, "num_key_value_heads", one_projection ? global_heads : a.kv_heads));
    if (a.heads % kv_heads != 0) return f.bad("num_key_value_heads", "does not divide num_attention_heads");
    a.head_dim = static_cast<int>(head_dim), a.kv_heads = static_cast<int>(kv_heads);
    if (one_projection) a.v_proj = "";
    return a;
}

Result<MoeConfig> read_router_experts(ConfigFields& f) {
    MoeConfig moe{.router_scale = "router.scale",
                  .experts_norm = "pre_feedforward_layernorm_2",
                  .expert_scale = "router.per_expert_scale",
                  .gate = "router.proj"};
    NIBBLE_CHECK(set_experts(f, moe, "num_experts", "top_k_experts"));
    NIBBLE_TRY(const int64_t width, f.integer("moe_intermediate_size"));
    moe.expert.intermediate = static_cast<int>(width);
    moe.expert.activation = Activation::gelu_tanh;
    return moe;
}

// Layers from first_sharing on attend to the last earlier layer of their kind.
Status share_keys(ConfigFields& f, Trunk& t, const Layers& layers, const std::vector<int64_t>& attention_blocks) {
    for (int64_t l = layers.first_sharing; l < t.layers; ++l) {
        int64_t from = layers.first_sharing - 1;
        while (from >= 0 && layers.slides[size_t(from)] != layers.slides[size_t(l)]) --from;
        if (from < 0) return f.bad("num_kv_shared_layers", "no earlier layer of the same kind has keys and values");
        const auto source = static_cast<size_t>(attention_blocks[size_t(from)]);
        auto& reader = std::get<AttentionConfig>(t.model.blocks[size_t(attention_blocks[size_t(l)])].mixer);
        std::get<AttentionConfig>(t.model.blocks[source].mixer).kv_shared = true;
        reader.kv_block = static_cast<int>(source);
        reader.kv_prefix = t.model.blocks[source].prefix;
        reader.v_proj = "v_proj";
    }
    return Ok{};
}

Result<ModelConfig> read_gemma4(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(Trunk t, read_trunk(f, root));
    t.model.embedding_scale = root_of_width(t.model.hidden);
    NIBBLE_TRY(t.model.logit_cap, read_cap(f, "final_logit_softcapping"));
    NIBBLE_TRY(AttentionConfig sliding, read_heads(f, t.model.hidden));
    sliding.scale = 1.0f;
    sliding.qk_norm = QkNorm::head;
    sliding.value_norm = true;
    NIBBLE_TRY(sliding.qkv_bias, f.boolean_or("attention_bias", false));
    sliding.out_bias = sliding.qkv_bias;
    NIBBLE_TRY(const bool one_projection, f.boolean_or("attention_k_eq_v", false));
    NIBBLE_CHECK(f.must_be("hidden_activation", "gelu_pytorch_tanh"));
    if (f.has("use_bidirectional_attention"))  // "vision": of images, which the text model does not read
        NIBBLE_CHECK(f.must_be("use_bidirectional_attention", "vision"));
    MlpConfig mlp;
    mlp.activation = Activation::gelu_tanh;
    NIBBLE_TRY(const int64_t intermediate, f.integer("intermediate_size"));
    NIBBLE_TRY(const bool wide, f.boolean_or("use_double_wide_mlp", false));
    NIBBLE_TRY(const bool experts, f.boolean_or("enable_moe_block", false));
    std::optional<MoeConfig> moe;
    if (experts) {
        NIBBLE_TRY(moe, read_router_experts(f));
    }
    for (const char* key : {"num_experts", "top_k_experts", "moe_intermediate_size"}) f.ignore(key);

    Layers layers;
    NIBBLE_TRY(layers.slides, sliding_layers(f, t.layers, [&](int64_t l) { return (l + 1) % 6 != 0; }));
    layers.slides.back() = false;
    NIBBLE_TRY(const int64_t sharing, f.integer_or("num_kv_shared_layers", 0, 0));
    layers.first_sharing = t.layers - std::min(sharing, t.layers);
    NIBBLE_TRY(const int64_t window, f.integer("sliding_window"));
    NIBBLE_TRY(const int64_t inputs, f.integer_or("hidden_size_per_layer_input", 0, 0));
    NIBBLE_TRY(const int64_t input_vocab, f.integer("vocab_size_per_layer_input"));
    NIBBLE_TRY(const LayerRopes some, read_layer_ropes(f, 2, t.model.context));  // checks the fields
    static_cast<void>(some);

    std::vector<int64_t> attention_blocks;
    for (int64_t l = 0; l < t.layers; ++l) {
        const bool slide = layers.slides[static_cast<size_t>(l)];
        AttentionConfig a = sliding;
        if (!slide) {
            NIBBLE_TRY(a, read_full(f, sliding, l, one_projection));
        }
        NIBBLE_TRY(const LayerRopes ropes, read_layer_ropes(f, a.head_dim, t.model.context, {}, a.head_dim));
        a.rope = slide ? ropes.sliding : ropes.full;
        a.window = slide ? window : 0;
        mlp.intermediate = static_cast<int>(wide && l >= layers.first_sharing ? 2 * intermediate : intermediate);
        attention_blocks.push_back(std::ssize(t.model.blocks));
        const std::string base = fmt::format("{}layers.{}.", root, l);
        BlockConfig& feed_forward = add_sandwich_layer(t, l, a, mlp).mlp;
        if (moe) {
            feed_forward.prefix = fmt::format("{}layers.{}", root, l);
            feed_forward.mixer = ParallelConfig{{{.prefix = base + "mlp",
                                                  .norm = feed_forward.norm,
                                                  .post_norm = base + "post_feedforward_layernorm_1.weight",
                                                  .mixer = mlp},
                                                 {.prefix = feed_forward.prefix,
                                                  .norm = "",
                                                  .post_norm = base + "post_feedforward_layernorm_2.weight",
                                                  .mixer = *moe}}};
            feed_forward.norm = "";
        }
        if (inputs > 0)
            t.model.blocks.push_back({.layer = static_cast<int>(l),
                                      .prefix = fmt::format("{}layers.{}", root, l),
                                      .post_norm = base + "post_per_layer_input_norm.weight",
                                      .mixer = PerLayerInputConfig{.width = static_cast<int>(inputs),
                                                                   .index = static_cast<int>(l),
                                                                   .layers = static_cast<int>(t.layers),
                                                                   .vocab = input_vocab,
                                                                   .table = root + "embed_tokens_per_layer.weight",
                                                                   .projection = root + "per_layer_model_projection",
                                                                   .norm = root + "per_layer_projection_norm.weight"}});
        t.model.blocks.back().output_scale = base + "layer_scalar";
    }
    NIBBLE_CHECK(share_keys(f, t, layers, attention_blocks));
    return std::move(t.model);
}

}  // namespace

namespace family {

extern const Family gemma4{.model_type = "gemma4_text",
                           .defaults = R"({
        "vocab_size": 262144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 131072, "rms_norm_eps": 1e-06,
        "tie_word_embeddings": true, "attention_bias": false, "sliding_window": 512,
        "vocab_size_per_layer_input": 262144, "hidden_size_per_layer_input": 256, "attention_k_eq_v": false,
        "num_kv_shared_layers": 0, "enable_moe_block": false, "use_double_wide_mlp": false, "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0, "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}})",
                           .describe = read_gemma4,
                           .multimodal = "gemma4",
                           .multimodal_root = "model.language_model."};

}  // namespace family
}  // namespace nibble
