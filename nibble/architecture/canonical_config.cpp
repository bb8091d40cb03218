#include "architecture/canonical_config.h"

#include "architecture/config_json.h"
#include "architecture/family.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

namespace nibble {
namespace {

// Second names of fields in every family.
constexpr FieldSpelling common_spellings[] = {{"dtype", "torch_dtype"}};

// Kinds of layers by name, older name, and letter in a pattern.
struct LayerKind {
    const char* name;
    const char* older;
    char letter;
};
constexpr std::array layer_kinds{LayerKind{"linear_attention", "mamba", 'M'},
                                 LayerKind{"full_attention", "attention", '*'}, LayerKind{"moe", nullptr, 'E'},
                                 LayerKind{"mlp", nullptr, '-'}};
// Members of a family's defaults that belong to the rotary embedding.
constexpr std::array<std::string_view, 4> rope_defaults{"rope_theta", "rope_local_base_freq", "rope_parameters",
                                                        "partial_rotary_factor"};
constexpr std::array layer_lists{"layers_block_type", "mtp_layers_block_type", "layer_types"};

const Json* present(const Json& object, std::string_view key) {
    const auto at = object.find(key);
    return at == object.end() || at->is_null() ? nullptr : &*at;
}

// Replaces transformers 5's {"__float__": "Infinity"} by the number, at any depth.
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

// Returns the list of layer kinds for a pattern of letters or a list of older names. Unknown names are kept; readers
// that use them reject them.
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

// The fields of rope_parameters, each with the place where it was found first.
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
    // Adds the fields of an object; `place` is its name in messages. "type" is the older name of "rope_type".
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
    Canonical(Json config, const std::string& type)
        : config_(std::move(config)), family_(find_family(type)), defaults_(config_defaults(type)) {}

    Result<Json> make() {
        decode_special_floats(config_);
        NIBBLE_CHECK(rename_layer_kinds());
        NIBBLE_CHECK(merge_spellings());
        if (defaults_.is_null()) return std::move(config_);
        if (defaults_.contains("rope_theta")) NIBBLE_CHECK(merge_rope());
        for (const auto& [key, value] : defaults_.items())
            if (std::ranges::find(rope_defaults, key) == rope_defaults.end() && !config_.contains(key))
                config_[key] = value;
        if (defaults_.contains("layers_block_type")) NIBBLE_CHECK(count_layers());
        return std::move(config_);
    }

private:
    // Patterns of letters exist only in families with a list of kinds.
    Status rename_layer_kinds() {
        const bool patterns = defaults_.contains("layers_block_type");
        std::vector<const char*> keys(layer_lists.begin(), layer_lists.end());
        if (patterns) keys.insert(keys.end(), {"hybrid_override_pattern", "mtp_hybrid_override_pattern"});
        for (const char* key : keys) {
            const Json* value = present(config_, key);
            if (!value || (!value->is_array() && !patterns)) continue;
            NIBBLE_TRY(config_[key], layer_kinds_of(key, *value));
        }
        return Ok{};
    }

    Status merge_spellings() {
        NIBBLE_CHECK(merge_spellings(common_spellings));
        return family_ ? merge_spellings(family_->spellings) : Status(Ok{});
    }
    Status merge_spellings(std::span<const FieldSpelling> spellings) {
        for (const FieldSpelling& spelling : spellings) {
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

    // Derives the number of layers from the list of kinds.
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

    // Merges rope_theta, rope_scaling, partial_rotary_factor, rope_local_base_freq and rope_parameters into
    // rope_parameters. Gemma 3 has one object per kind of attention; scaling in older files is for full attention.
    // Numbers at the top level are used only if rope_parameters lacks them, as in transformers 5, because tools leave
    // outdated ones there.
    Status merge_rope() {
        const bool by_kind = defaults_.contains("rope_local_base_freq");
        Json parameters = taken("rope_parameters");
        const Json scaling = taken("rope_scaling");
        if (parameters.is_null() && scaling.is_null()) parameters = defaults_.value("rope_parameters", Json());
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
        sliding.add_missing("partial_rotary_factor", partial);
        for (RopeFields* fields : {&full, &sliding})
            fields->add_missing("partial_rotary_factor", defaults_.value("partial_rotary_factor", Json()));
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
    const Family* family_;
    Json defaults_;
};

std::string model_type_of(const Json& config) {
    const Json* type = present(config, "model_type");
    return type && type->is_string() ? type->get<std::string>() : "";
}

}  // namespace

Result<Json> canonical_config(const Json& config) {
    if (!config.is_object()) return fail("config.json is not an object");
    const std::string type = model_type_of(config);
    const Json* text = present(config, "text_config");
    const bool inside = text && text->is_object();
    const Family* part = find_multimodal_family(type, inside ? model_type_of(*text) : "");
    if (!part) return Canonical(config, type).make();
    if (!inside) return fail("config.json: {} without a text_config", type);
    Json inner = *text;
    for (const char* key : {"eos_token_id", "bos_token_id", "pad_token_id"})
        if (!inner.contains(key) && config.contains(key)) inner[key] = config[key];
    // transformers 5 ties by the whole model's value, also if the text part has another; 4.x leaves it out there.
    if (const Json* tied = present(config, "tie_word_embeddings")) inner["tie_word_embeddings"] = Json(*tied);
    inner["model_type"] = part->model_type;
    return Canonical(std::move(inner), std::string(part->model_type)).make();
}

std::vector<const char*> spellings_of(const char* name) {
    std::vector<const char*> names{name};
    const auto add = [&](std::span<const FieldSpelling> spellings) {
        for (const FieldSpelling& spelling : spellings)
            if (std::string_view(spelling.name) == name &&
                std::ranges::find(names, std::string_view(spelling.other)) == names.end())
                names.push_back(spelling.other);
    };
    add(common_spellings);
    for (const Family* family : families()) add(family->spellings);
    return names;
}

Json config_defaults(std::string_view model_type) {
    const Family* family = find_family(model_type);
    return family ? *parse_json(family->defaults, {.python_constants = true}) : Json();
}

}  // namespace nibble
