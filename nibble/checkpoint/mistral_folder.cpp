#include "checkpoint/mistral_folder.h"

#include "architecture/config_json.h"
#include "io/json_events.h"

#include <algorithm>
#include <array>

namespace nibble {
namespace {

struct Renamed {
    std::string_view mistral, hf;
};

// Integers and numbers that only have another name.
constexpr std::array dense_keys{Renamed{"dim", "hidden_size"},
                                Renamed{"n_layers", "num_hidden_layers"},
                                Renamed{"head_dim", "head_dim"},
                                Renamed{"hidden_dim", "intermediate_size"},
                                Renamed{"n_heads", "num_attention_heads"},
                                Renamed{"n_kv_heads", "num_key_value_heads"},
                                Renamed{"norm_eps", "rms_norm_eps"},
                                Renamed{"vocab_size", "vocab_size"},
                                Renamed{"rope_theta", "rope_theta"},
                                Renamed{"sliding_window", "sliding_window"},
                                Renamed{"max_position_embeddings", "max_position_embeddings"},
                                Renamed{"max_seq_len", "max_position_embeddings"},
                                Renamed{"tied_embeddings", "tie_word_embeddings"}};

constexpr std::array parts{Renamed{"attention.wq", "self_attn.q_proj"},
                           Renamed{"attention.wk", "self_attn.k_proj"},
                           Renamed{"attention.wv", "self_attn.v_proj"},
                           Renamed{"attention.wo", "self_attn.o_proj"},
                           Renamed{"attention_norm", "input_layernorm"},
                           Renamed{"ffn_norm", "post_attention_layernorm"},
                           Renamed{"feed_forward.w1", "mlp.gate_proj"},
                           Renamed{"feed_forward.w2", "mlp.down_proj"},
                           Renamed{"feed_forward.w3", "mlp.up_proj"},
                           Renamed{"feed_forward.gate", "block_sparse_moe.gate"},
                           Renamed{"feed_forward.experts", "block_sparse_moe.experts"},
                           Renamed{"gate", "block_sparse_moe.gate"},
                           Renamed{"experts", "block_sparse_moe.experts"}};

constexpr std::array roots{Renamed{"tok_embeddings.", "model.embed_tokens."}, Renamed{"norm.", "model.norm."},
                           Renamed{"output.", "lm_head."}};

Error unknown_value(std::string_view key, const Json& value) {
    return fail("{}: {} is not known to nibble in Mistral's own layout; use the model's files in Hugging Face's layout",
                key, show_value(value));
}

Status take_experts(const Json& moe, Json& config) {
    if (!moe.is_object()) return unknown_value("moe", moe);
    for (const auto& [key, value] : moe.items()) {
        if (key == "num_experts")
            config["num_local_experts"] = value;
        else if (key == "num_experts_per_tok")
            config["num_experts_per_tok"] = value;
        else
            return unknown_value("moe: " + key, value);
    }
    config["model_type"] = "mixtral";
    config["architectures"] = {"MixtralForCausalLM"};
    return Ok{};
}

// The rotary embedding's scaling: yarn, and a factor of queries that grows with the position.
Status take_rope(const Json& params, Json& config) {
    const Json yarn = params.value("yarn", Json()), growth = params.value("llama_4_scaling", Json());
    if (yarn.is_null() && growth.is_null()) return Ok{};
    Json rope{{"rope_type", "yarn"}, {"rope_theta", config.value("rope_theta", Json(10000.0))}};
    if (!yarn.is_object()) return unknown_value("yarn", yarn);
    for (const auto& [key, value] : yarn.items()) {
        if (key == "original_max_position_embeddings" || key == "factor")
            rope[key] = value;
        else if (key == "beta")
            rope["beta_fast"] = value;
        else if (key == "alpha")
            rope["beta_slow"] = value;
        else if (key != "apply_scale" || !value.is_boolean())
            return unknown_value("yarn: " + key, value);
        else if (!value.get<bool>())
            rope["attention_factor"] = 1.0;
    }
    config["model_type"] = "ministral3";
    config["architectures"] = {"Ministral3ForCausalLM"};
    if (!growth.is_null()) {
        const Json length = rope.value("original_max_position_embeddings", Json());
        if (!growth.is_object() || growth.value("original_max_position_embeddings", length) != length)
            return unknown_value("llama_4_scaling", growth);
        for (const auto& [key, value] : growth.items()) {
            if (key == "original_max_position_embeddings") continue;
            if (key != "beta") return unknown_value("llama_4_scaling: " + key, value);
            rope["llama_4_scaling_beta"] = value;
        }
    }
    config.erase("rope_theta");
    config["rope_parameters"] = std::move(rope);
    return Ok{};
}

// FP8 with one scale per matrix is the only quantization of this layout.
Status take_quantization(const Json& value, Json& config) {
    if (value.is_null()) return Ok{};
    const bool fp8 = value.is_object() && value.value("qformat_weight", Json()) == "fp8_e4m3" && value.size() == 2;
    if (!fp8 || (value.value("qscheme_act", Json()) != "TENSOR" && value.value("qscheme_act", Json("")) != nullptr))
        return unknown_value("quantization", value);
    config["quantization_config"] = {{"quant_method", "fp8"},
                                     {"activation_scheme", value["qscheme_act"].is_null() ? "dynamic" : "static"}};
    return Ok{};
}

}  // namespace

Result<Json> mistral_config(const Json& params) {
    if (!params.is_object()) return fail("must be an object");
    Json config{{"model_type", "mistral"},
                {"architectures", {"MistralForCausalLM"}},
                {"hidden_act", "silu"},
                {"tie_word_embeddings", false},
                {"torch_dtype", "bfloat16"}};
    for (const auto& [key, value] : params.items()) {
        const auto same = std::ranges::find(dense_keys, key, &Renamed::mistral);
        if (same != dense_keys.end()) {
            if (!value.is_null()) config[std::string(same->hf)] = value;
            continue;
        }
        if (key == "moe") {
            if (!value.is_null()) NIBBLE_CHECK(take_experts(value, config));
        } else if (key == "quantization") {
            NIBBLE_CHECK(take_quantization(value, config));
        } else if (key == "yarn" || key == "llama_4_scaling") {
            continue;
        } else if (!value.is_null() && !(key == "model_type" && value == "transformer") &&
                   !(key == "use_biases" && value == false) && !(key == "causal" && value == true)) {
            return unknown_value(key, value);
        }
    }
    NIBBLE_CHECK(take_rope(params, config));
    if (!config.contains("sliding_window")) config["sliding_window"] = nullptr;
    return config;
}

std::string mistral_name(const std::string& name) {
    for (const auto& [from, to] : roots)
        if (name.starts_with(from)) return std::string(to) + name.substr(from.size());
    constexpr std::string_view layers = "layers.";
    const size_t dot = name.starts_with(layers) ? name.find('.', layers.size()) : name.npos;
    if (dot == name.npos) return name;
    const std::string_view part = std::string_view(name).substr(dot + 1);
    for (const auto& [from, to] : parts)
        if (part.starts_with(from) && part.substr(from.size()).starts_with('.'))
            return fmt::format("model.{}.{}{}", name.substr(0, dot), to, part.substr(from.size()));
    return "model." + name;
}

int64_t rotated_head(const std::string& name, const Json& config) {
    if (!name.ends_with("self_attn.q_proj.weight") && !name.ends_with("self_attn.k_proj.weight")) return 0;
    const auto number = [&](const char* key) {
        const Json value = config.value(key, Json());
        return value.is_number_integer() ? value.get<int64_t>() : 0;
    };
    if (const int64_t head = number("head_dim"); head > 0) return head;
    const int64_t heads = number("num_attention_heads");
    return heads > 0 ? number("hidden_size") / heads : 0;
}

}  // namespace nibble
