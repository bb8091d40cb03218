// llama and its relatives: one attention and one MLP block per layer.
#include "formats/minifloat.h"
#include "model/config/config_families.h"
#include "model/config/config_rope.h"

#include <algorithm>
#include <cmath>

namespace nibble {

Result<Trunk> read_trunk(ConfigFields& f, const std::string& root) {
    Trunk t;
    NIBBLE_TRY(t.model.vocab, f.integer("vocab_size"));
    NIBBLE_TRY(t.model.hidden, f.integer("hidden_size"));
    NIBBLE_TRY(t.layers, f.layers());
    NIBBLE_TRY(t.model.context, f.integer("max_position_embeddings"));
    NIBBLE_TRY(const double eps, f.number("rms_norm_eps"));
    t.model.norm_eps = static_cast<float>(eps);
    NIBBLE_TRY(const bool tie, f.boolean_or("tie_word_embeddings", false));
    t.model.embedding = root + "embed_tokens.weight";
    t.model.norm = root + "norm.weight";
    // "language_model.model." has its head at "language_model.lm_head".
    const std::string outer = root.ends_with(".model.") ? root.substr(0, root.size() - 6) : "";
    t.model.head = tie ? t.model.embedding : outer + "lm_head.weight";
    return t;
}

Result<AttentionConfig> read_heads(ConfigFields& f, int64_t hidden) {
    AttentionConfig a;
    NIBBLE_TRY(const int64_t heads, f.integer("num_attention_heads"));
    NIBBLE_TRY(const int64_t kv_heads, f.integer_or("num_key_value_heads", heads));
    NIBBLE_TRY(const int64_t head_dim, f.integer_or("head_dim", hidden / heads));
    if (heads % kv_heads != 0)
        return f.bad("num_key_value_heads", fmt::format("does not divide num_attention_heads, {}", heads));
    a.heads = static_cast<int>(heads), a.kv_heads = static_cast<int>(kv_heads), a.head_dim = static_cast<int>(head_dim);
    a.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
    return a;
}

Result<MlpConfig> read_mlp(ConfigFields& f) {
    MlpConfig m;
    NIBBLE_CHECK(f.must_be("hidden_act", "silu"));
    NIBBLE_TRY(const int64_t intermediate, f.integer("intermediate_size"));
    m.intermediate = static_cast<int>(intermediate);
    return m;
}

void add_layer(Trunk& t, const std::string& root, int64_t layer, MixerConfig attention, MixerConfig mlp) {
    const std::string base = fmt::format("{}layers.{}.", root, layer);
    BlockConfig first, second;
    first.layer = second.layer = static_cast<int>(layer);
    first.prefix = base + "self_attn", first.norm = base + "input_layernorm.weight";
    second.prefix = base + "mlp", second.norm = base + "post_attention_layernorm.weight";
    first.mixer = std::move(attention), second.mixer = std::move(mlp);
    t.model.blocks.push_back(std::move(first));
    t.model.blocks.push_back(std::move(second));
}

namespace {

// Layer by layer: does it slide? From layer_types, else from `otherwise`.
Result<std::vector<bool>> sliding_layers(ConfigFields& f, int64_t layers, auto otherwise) {
    NIBBLE_TRY(const auto types, f.strings("layer_types"));
    if (!types.empty() && static_cast<int64_t>(types.size()) != layers)
        return f.bad("layer_types", fmt::format("expected one per layer, {}", layers));
    std::vector<bool> slides;
    for (int64_t l = 0; l < layers; ++l) {
        if (types.empty()) {
            slides.push_back(otherwise(l));
            continue;
        }
        const std::string& type = types[static_cast<size_t>(l)];
        if (type != "full_attention" && type != "sliding_attention")
            return f.bad("layer_types", "only full_attention and sliding_attention are supported");
        slides.push_back(type == "sliding_attention");
    }
    return slides;
}

struct Dense {
    Trunk trunk;
    AttentionConfig attention;
    MlpConfig mlp;
};

Result<Dense> read_dense(ConfigFields& f, const std::string& root) {
    Dense d;
    NIBBLE_TRY(d.trunk, read_trunk(f, root));
    NIBBLE_TRY(d.attention, read_heads(f, d.trunk.model.hidden));
    NIBBLE_TRY(d.mlp, read_mlp(f));
    NIBBLE_TRY(d.attention.rope, read_rope(f, d.attention.head_dim, d.trunk.model.context));
    return d;
}

Status read_biases(ConfigFields& f, AttentionConfig& attention, MlpConfig& mlp) {
    NIBBLE_TRY(attention.qkv_bias, f.boolean_or("attention_bias", false));
    attention.out_bias = attention.qkv_bias;
    NIBBLE_TRY(mlp.bias, f.boolean_or("mlp_bias", false));
    return Ok{};
}

// use_sliding_window (qwen): the layers from max_window_layers on, unless layer_types says which.
Status add_qwen_layers(ConfigFields& f, const std::string& root, Dense& d) {
    NIBBLE_TRY(const bool use, f.boolean_or("use_sliding_window", false));
    NIBBLE_TRY(const int64_t window, f.integer_or("sliding_window", 0));
    NIBBLE_TRY(const int64_t from, f.integer_or("max_window_layers", 0, 0));
    NIBBLE_TRY(const auto slides, sliding_layers(f, d.trunk.layers, [&](int64_t l) { return use && l >= from; }));
    for (int64_t l = 0; l < d.trunk.layers; ++l) {
        const bool slide = slides[static_cast<size_t>(l)];
        if (slide && (!use || window == 0)) return f.bad("layer_types", "sliding_attention without a sliding_window");
        d.attention.window = slide ? window : 0;
        add_layer(d.trunk, root, l, d.attention, d.mlp);
    }
    return Ok{};
}

}  // namespace

Result<ModelConfig> read_llama(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(Dense d, read_dense(f, root));
    NIBBLE_CHECK(read_biases(f, d.attention, d.mlp));
    for (int64_t l = 0; l < d.trunk.layers; ++l) add_layer(d.trunk, root, l, d.attention, d.mlp);
    return std::move(d.trunk.model);
}

Result<ModelConfig> read_mistral(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(Dense d, read_dense(f, root));
    NIBBLE_CHECK(read_biases(f, d.attention, d.mlp));
    NIBBLE_TRY(d.attention.window, f.integer_or("sliding_window", 0));
    for (int64_t l = 0; l < d.trunk.layers; ++l) add_layer(d.trunk, root, l, d.attention, d.mlp);
    return std::move(d.trunk.model);
}

Result<ModelConfig> read_qwen2(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(Dense d, read_dense(f, root));
    d.attention.qkv_bias = true;
    NIBBLE_CHECK(add_qwen_layers(f, root, d));
    return std::move(d.trunk.model);
}

Result<ModelConfig> read_qwen3(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(Dense d, read_dense(f, root));
    NIBBLE_CHECK(read_biases(f, d.attention, d.mlp));
    d.attention.qk_norm = true;
    NIBBLE_CHECK(add_qwen_layers(f, root, d));
    return std::move(d.trunk.model);
}

Result<ModelConfig> read_qwen3_moe(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(Dense d, read_dense(f, root));
    NIBBLE_CHECK(read_biases(f, d.attention, d.mlp));
    d.attention.qk_norm = true;
    NIBBLE_CHECK(f.must_be("use_sliding_window", false));
    for (const char* key : {"sliding_window", "max_window_layers"}) f.ignore(key);  // unused without the switch above
    MoeConfig moe;
    NIBBLE_TRY(const int64_t experts, f.integer("num_local_experts", 0));
    NIBBLE_TRY(const int64_t width, f.integer("moe_intermediate_size"));
    NIBBLE_TRY(const int64_t chosen, f.integer("num_experts_per_tok"));
    NIBBLE_TRY(moe.normalize, f.boolean_or("norm_topk_prob", false));
    moe.experts = static_cast<int>(experts), moe.top_k = static_cast<int>(chosen);
    moe.expert.intermediate = static_cast<int>(width);
    if (experts > 0 && chosen > experts) return f.bad("num_experts_per_tok", "more than num_local_experts");
    NIBBLE_TRY(const int64_t step, f.integer_or("decoder_sparse_step", 1));
    NIBBLE_TRY(const auto dense, f.integers("mlp_only_layers"));
    for (int64_t l = 0; l < d.trunk.layers; ++l) {
        const bool sparse = experts > 0 && (l + 1) % step == 0 && !std::ranges::count(dense, l);
        add_layer(d.trunk, root, l, d.attention, sparse ? MixerConfig(moe) : MixerConfig(d.mlp));
    }
    return std::move(d.trunk.model);
}

Result<ModelConfig> read_mixtral(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(Dense d, read_dense(f, root));
    NIBBLE_TRY(d.attention.window, f.integer_or("sliding_window", 0));
    MoeConfig moe;
    NIBBLE_TRY(const int64_t experts, f.integer("num_local_experts"));
    NIBBLE_TRY(const int64_t chosen, f.integer("num_experts_per_tok"));
    if (chosen > experts) return f.bad("num_experts_per_tok", "more than num_local_experts");
    moe.experts = static_cast<int>(experts), moe.top_k = static_cast<int>(chosen);
    moe.expert = d.mlp;
    moe.expert.gate_proj = "w1", moe.expert.up_proj = "w3", moe.expert.down_proj = "w2";
    for (int64_t l = 0; l < d.trunk.layers; ++l) {
        add_layer(d.trunk, root, l, d.attention, moe);
        d.trunk.model.blocks.back().prefix = fmt::format("{}layers.{}.block_sparse_moe", root, l);
    }
    return std::move(d.trunk.model);
}

Result<ModelConfig> read_gemma3(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(Trunk t, read_trunk(f, root));
    t.model.norm_plus_one = true;
    const auto root_hidden = static_cast<float>(std::sqrt(static_cast<double>(t.model.hidden)));
    t.model.embedding_scale = round_to_bf16(root_hidden);
    NIBBLE_TRY(AttentionConfig a, read_heads(f, t.model.hidden));
    a.qk_norm = true;
    NIBBLE_TRY(a.qkv_bias, f.boolean_or("attention_bias", false));
    a.out_bias = a.qkv_bias;
    NIBBLE_TRY(const double scalar, f.number("query_pre_attn_scalar"));
    if (!(scalar > 0)) return f.bad("query_pre_attn_scalar", "expected a positive number");
    a.scale = static_cast<float>(1.0 / std::sqrt(scalar));
    MlpConfig mlp;
    NIBBLE_CHECK(f.must_be("hidden_activation", "gelu_pytorch_tanh"));
    NIBBLE_CHECK(f.must_be("use_bidirectional_attention", false));
    for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"})
        if (f.has(key)) return f.bad(key, "soft caps are not supported");
    NIBBLE_TRY(const int64_t intermediate, f.integer("intermediate_size"));
    mlp.intermediate = static_cast<int>(intermediate);
    mlp.activation = Activation::gelu_tanh;

    NIBBLE_TRY(const int64_t window, f.integer_or("sliding_window", 0));
    NIBBLE_TRY(const int64_t period, f.integer("sliding_window_pattern"));
    NIBBLE_TRY(const auto slides, sliding_layers(f, t.layers, [&](int64_t l) { return (l + 1) % period != 0; }));
    const Json* parameters = f.find("rope_parameters");
    if (!parameters) return fail("config.json: 'rope_parameters' is missing");
    const auto rope = [&](const char* kind) {
        return read_rope_object((*parameters)[kind], fmt::format("config.json: rope_parameters.{}", kind), a.head_dim,
                                t.model.context);
    };
    NIBBLE_TRY(const Rope global, rope("full_attention"));
    NIBBLE_TRY(const Rope local, rope("sliding_attention"));
    for (int64_t l = 0; l < t.layers; ++l) {
        const bool slide = slides[static_cast<size_t>(l)];
        a.window = slide ? window : 0;
        a.rope = slide ? local : global;
        add_layer(t, root, l, a, mlp);
        const std::string base = fmt::format("{}layers.{}.", root, l);
        BlockConfig& first = t.model.blocks[t.model.blocks.size() - 2];
        BlockConfig& second = t.model.blocks.back();
        first.post_norm = base + "post_attention_layernorm.weight";
        second.norm = base + "pre_feedforward_layernorm.weight";
        second.post_norm = base + "post_feedforward_layernorm.weight";
    }
    return std::move(t.model);
}

}  // namespace nibble
