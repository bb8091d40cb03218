#include "checkpoint/canonical_config.h"

#include "checkpoint/config_json.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

namespace nibble {
namespace {

struct Spelling {
    std::string_view families;  // separated by spaces; "*": all
    const char* name;           // of transformers 5
    const char* other;
};

// transformers' attribute_map of each family, the names that its __post_init__ still takes, and what publishers write.
constexpr std::array spellings{
    Spelling{"*", "dtype", "torch_dtype"},
    Spelling{"mixtral qwen3_moe", "num_local_experts", "num_experts"},
    Spelling{"deepseek_v3 nemotron_h", "n_routed_experts", "num_local_experts"},
    Spelling{"deepseek_v3", "num_nextn_predict_layers", "num_mtp_layers"},
    Spelling{"gemma3_text", "hidden_activation", "hidden_act"},
    Spelling{"gemma3_text", "sliding_window_pattern", "_sliding_window_pattern"},
    Spelling{"nemotron_h", "layers_block_type", "layer_types"},
    Spelling{"nemotron_h", "layers_block_type", "hybrid_override_pattern"},
    Spelling{"nemotron_h", "mtp_layers_block_type", "mtp_hybrid_override_pattern"},
    Spelling{"nemotron_h", "layer_norm_epsilon", "norm_eps"},
    Spelling{"nemotron_h", "ssm_state_size", "mamba_d_state"},
    Spelling{"nemotron_h", "n_groups", "mamba_n_groups"},
    Spelling{"nemotron_h", "conv_kernel", "mamba_d_conv"},
    Spelling{"nemotron_h", "expand", "mamba_expand"},
    Spelling{"nemotron_h", "time_step_min", "mamba_dt_min"},
    Spelling{"nemotron_h", "time_step_max", "mamba_dt_max"},
    Spelling{"nemotron_h", "time_step_limit", "mamba_dt_limit"},
    Spelling{"nemotron_h", "time_step_floor", "mamba_dt_init_floor"},
    Spelling{"nemotron_h", "use_conv_bias", "mamba_conv_bias"},
    Spelling{"nemotron_h", "chunk_size", "mamba_chunk_size"},
};

// Kinds of layers under their older names, and by the letters of a pattern.
struct LayerKind {
    const char* name;
    const char* older;
    char letter;
};
constexpr std::array layer_kinds{LayerKind{"linear_attention", "mamba", 'M'},
                                 LayerKind{"full_attention", "attention", '*'}, LayerKind{"moe", nullptr, 'E'},
                                 LayerKind{"mlp", nullptr, '-'}};
constexpr std::array layer_lists{"layers_block_type", "mtp_layers_block_type", "layer_types"};

bool has_word(std::string_view words, std::string_view word) {
    for (size_t at = 0; at < words.size();) {
        const size_t end = std::min(words.find(' ', at), words.size());
        if (words.substr(at, end - at) == word) return true;
        at = end + 1;
    }
    return false;
}

const Json* present(const Json& object, std::string_view key) {
    const auto at = object.find(key);
    return at == object.end() || at->is_null() ? nullptr : &*at;
}

// {"__float__": "Infinity"} of transformers 5 as the number, at any depth.
void decode_special_floats(Json& value) {
    if (value.is_object() && value.size() == 1 && value.contains("__float__")) {
        const Json tag = value["__float__"];
        const double infinity = std::numeric_limits<double>::infinity();
        if (tag == "Infinity") value = infinity;
        if (tag == "-Infinity") value = -infinity;
        if (tag == "NaN") value = std::numeric_limits<double>::quiet_NaN();
        return;
    }
    if (value.is_structured())
        for (Json& item : value) decode_special_floats(item);
}

Error contradiction(std::string_view key, const Json& value, std::string_view other, const Json& other_value) {
    return fail("config.json: '{}' is {} and '{}' is {}: two spellings of one field must agree; remove the wrong one",
                key, show_value(value), other, show_value(other_value));
}

// The list of layer kinds that a pattern of letters or a list in older names means. Unknown names stay: readers that
// need to know them refuse them.
Result<Json> layer_kinds_of(const char* key, const Json& value) {
    Json kinds = Json::array();
    if (value.is_string()) {
        for (const char letter : value.get_ref<const std::string&>()) {
            const auto kind = std::ranges::find(layer_kinds, letter, &LayerKind::letter);
            if (kind == layer_kinds.end())
                return fail("config.json: '{}' is {}: only M, E, * and - are supported", key, show_value(value));
            kinds.push_back(kind->name);
        }
        return kinds;
    }
    if (!value.is_array())
        return fail("config.json: '{}' is {}: expected a list of layer kinds", key, show_value(value));
    for (const Json& item : value) {
        const auto kind =
            std::ranges::find_if(layer_kinds, [&](const LayerKind& k) { return k.older && item == k.older; });
        kinds.push_back(kind == layer_kinds.end() ? item : Json(kind->name));
    }
    return kinds;
}

// One object's fields, each with the place that named it first.
class RopeFields {
public:
    Status add(const std::string& key, const Json& value, const std::string& place) {
        if (value.is_null()) return Ok{};
        if (const auto found = values_.find(key); found != values_.end()) {
            if (*found == value) return Ok{};
            return contradiction(places_[key].get<std::string>(), *found, place, value);
        }
        values_[key] = value;
        places_[key] = place;
        return Ok{};
    }
    // An object of rope fields under the name `place`. "type" is the older name of "rope_type".
    Status add_all(const Json& object, const std::string& place) {
        if (!object.is_object()) return fail("config.json: '{}' is {}: expected an object", place, show_value(object));
        for (const auto& [key, value] : object.items())
            NIBBLE_CHECK(add(key == "type" ? "rope_type" : key, value, fmt::format("{}.{}", place, key)));
        return Ok{};
    }
    void add_missing(const char* key, const Json& value) {
        if (!value.is_null() && !values_.contains(key)) values_[key] = value;
    }
    Json values() const { return values_; }

private:
    Json values_ = Json::object(), places_ = Json::object();
};

class Canonical {
public:
    Canonical(Json config, std::string type)
        : config_(std::move(config)), type_(std::move(type)), defaults_(config_defaults(type_)) {}

    Result<Json> make() {
        decode_special_floats(config_);
        NIBBLE_CHECK(rename_layer_kinds());
        NIBBLE_CHECK(merge_spellings());
        if (defaults_.is_null()) return std::move(config_);
        if (defaults_.contains("rope_theta")) NIBBLE_CHECK(merge_rope());
        for (const auto& [key, value] : defaults_.items())
            if (key != "rope_theta" && key != "rope_local_base_freq" && !config_.contains(key)) config_[key] = value;
        if (type_ == "nemotron_h") NIBBLE_CHECK(count_layers());
        return std::move(config_);
    }

private:
    bool concerns(const Spelling& spelling) const {
        return spelling.families == "*" || has_word(spelling.families, type_);
    }

    Status rename_layer_kinds() {
        std::vector<const char*> keys(layer_lists.begin(), layer_lists.end());
        if (type_ == "nemotron_h") keys.insert(keys.end(), {"hybrid_override_pattern", "mtp_hybrid_override_pattern"});
        for (const char* key : keys) {
            const Json* value = present(config_, key);
            if (!value || (!value->is_array() && type_ != "nemotron_h")) continue;
            NIBBLE_TRY(config_[key], layer_kinds_of(key, *value));
        }
        return Ok{};
    }

    Status merge_spellings() {
        for (const Spelling& spelling : spellings) {
            if (!concerns(spelling)) continue;
            const Json* other = present(config_, spelling.other);
            if (other) {
                const Json* value = present(config_, spelling.name);
                if (value && *value != *other) return contradiction(spelling.name, *value, spelling.other, *other);
                if (!value) config_[spelling.name] = Json(*other);
            }
            config_.erase(spelling.other);
        }
        return Ok{};
    }

    // nemotron_h: the list of kinds says how many layers there are.
    Status count_layers() {
        const Json* kinds = present(config_, "layers_block_type");
        if (!kinds) return fail("config.json: 'layers_block_type' is missing");
        const Json count = kinds->size();
        if (const Json* said = present(config_, "num_hidden_layers"); said && *said != count)
            return fail("config.json: 'num_hidden_layers' is {}, but 'layers_block_type' lists {} layers",
                        show_value(*said), kinds->size());
        config_["num_hidden_layers"] = count;
        return Ok{};
    }

    Json taken(const char* key) {
        const Json* value = present(config_, key);
        Json copy = value ? *value : Json();
        config_.erase(key);
        return copy;
    }

    // rope_theta, rope_scaling, partial_rotary_factor, rope_local_base_freq and rope_parameters as rope_parameters.
    // Gemma 3 has one object for each kind of attention; what older files scale is full attention. Numbers of the top
    // level count where rope_parameters lacks them, as in transformers 5: tools leave stale ones there.
    Status merge_rope() {
        const bool by_kind = defaults_.contains("rope_local_base_freq");
        const Json parameters = taken("rope_parameters"), scaling = taken("rope_scaling");
        const Json theta = taken("rope_theta"), partial = taken("partial_rotary_factor");
        const Json local_theta = by_kind ? taken("rope_local_base_freq") : Json();
        RopeFields full, sliding;
        const std::string name = "rope_parameters";
        const bool nested = by_kind && parameters.is_object() &&
                            (parameters.contains("full_attention") || parameters.contains("sliding_attention"));
        if (nested) {
            for (const auto& [kind, object] : parameters.items()) {
                if (kind != "full_attention" && kind != "sliding_attention")
                    return fail("config.json: '{}.{}': only full_attention and sliding_attention are supported", name,
                                kind);
                if (object.is_null()) continue;
                NIBBLE_CHECK((kind == "full_attention" ? full : sliding).add_all(object, name + "." + kind));
            }
        } else if (!parameters.is_null()) {
            NIBBLE_CHECK(full.add_all(parameters, name));
        }
        if (!scaling.is_null()) NIBBLE_CHECK(full.add_all(scaling, "rope_scaling"));
        full.add_missing("rope_theta", theta);
        full.add_missing("partial_rotary_factor", partial);
        sliding.add_missing("rope_theta", local_theta);
        full.add_missing("rope_theta", defaults_["rope_theta"]);
        full.add_missing("rope_type", "default");
        if (!by_kind) {
            config_[name] = full.values();
            return Ok{};
        }
        sliding.add_missing("rope_theta", defaults_["rope_local_base_freq"]);
        sliding.add_missing("rope_type", "default");
        config_[name] = {{"full_attention", full.values()}, {"sliding_attention", sliding.values()}};
        return Ok{};
    }

    Json config_;
    std::string type_;
    Json defaults_;
};

std::string model_type_of(const Json& config) {
    const Json* type = present(config, "model_type");
    return type && type->is_string() ? type->get<std::string>() : "";
}

}  // namespace

Result<Json> canonical_config(const Json& config) {
    if (!config.is_object()) return fail("config.json is not an object");
    std::string type = model_type_of(config);
    if (type != "gemma3") return Canonical(config, std::move(type)).make();
    const Json* text = present(config, "text_config");
    if (!text || !text->is_object()) return fail("config.json: gemma3 without a text_config");
    Json inner = *text;
    for (const char* key : {"eos_token_id", "bos_token_id", "pad_token_id", "tie_word_embeddings"})
        if (!inner.contains(key) && config.contains(key)) inner[key] = config[key];
    inner["model_type"] = "gemma3_text";
    return Canonical(std::move(inner), "gemma3_text").make();
}

std::vector<const char*> spellings_of(const char* name) {
    std::vector<const char*> names{name};
    for (const Spelling& spelling : spellings)
        if (std::string_view(spelling.name) == name) names.push_back(spelling.other);
    return names;
}

}  // namespace nibble
