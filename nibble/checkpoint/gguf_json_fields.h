// Reads fields of config.json for GGUF keys.
#pragma once

#include "base/error.h"
#include "base/json.h"
#include "io/json_events.h"

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace nibble {

// Reads the fields of a JSON object; errors name the field.
class GgufJsonFields {
public:
    explicit GgufJsonFields(const Json& object) : object_(object) {}

    // Null fields count as absent, as in Python.
    bool has(const char* field) const {
        const auto at = object_.find(field);
        return at != object_.end() && !at->is_null();
    }
    Result<uint32_t> integer(const char* field) const {
        const auto at = object_.find(field);
        if (at == object_.end() || !at->is_number_integer() || at->get<int64_t>() < 0 || at->get<int64_t>() > INT32_MAX)
            return fail("config.json: '{}' must be an integer from 0 to {}", field, INT32_MAX);
        return at->get<uint32_t>();
    }
    Result<uint32_t> integer_or(const char* field, uint32_t fallback) const {
        return has(field) ? integer(field) : fallback;
    }
    Result<double> number(const char* field) const {
        const auto at = object_.find(field);
        if (at == object_.end() || !at->is_number() || !std::isfinite(static_cast<float>(at->get<double>())))
            return fail("config.json: '{}' must be a number", field);
        return at->get<double>();
    }
    Result<double> number_or(const char* field, double fallback) const { return has(field) ? number(field) : fallback; }
    Result<bool> boolean_or(const char* field, bool fallback) const {
        if (!has(field)) return fallback;
        const Json& value = *object_.find(field);
        if (!value.is_boolean()) return fail("config.json: '{}' must be true or false", field);
        return value.get<bool>();
    }
    Result<std::string> text_or(const char* field, std::string_view fallback) const {
        if (!has(field)) return std::string(fallback);
        const Json& value = *object_.find(field);
        if (!value.is_string()) return fail("config.json: '{}' must be a string", field);
        return value.get<std::string>();
    }
    Result<Json> object_or_null(const char* field) const {
        if (!has(field)) return Json();
        const Json& value = *object_.find(field);
        if (!value.is_object()) return fail("config.json: '{}' must be an object", field);
        return value;
    }

private:
    const Json& object_;
};

// Parameters of the rotary embedding of (full) attention. Gemma 3 has one object per kind of layer.
struct GgufRope {
    Json scaling;  // null: no scaling
    double base = 10000;
    std::optional<double> local_base = std::nullopt;
    std::string type;
    double partial = 1;  // the share of a head that rotates, where config.json has it
};

inline Result<GgufRope> gguf_rope_of(const Json& config) {
    using Fields = GgufJsonFields;
    GgufRope rope;
    NIBBLE_TRY(rope.scaling, Fields(config).object_or_null("rope_parameters"));
    if (rope.scaling.contains("full_attention")) {
        NIBBLE_TRY(rope.local_base, Fields(rope.scaling["sliding_attention"]).number("rope_theta"));
        rope.scaling = Json(rope.scaling["full_attention"]);
    }
    if (rope.scaling.is_null()) return rope;
    NIBBLE_TRY(rope.base, Fields(rope.scaling).number("rope_theta"));
    const Fields scaling(rope.scaling);
    NIBBLE_TRY(rope.type, scaling.text_or("rope_type", "default"));
    NIBBLE_TRY(rope.partial, scaling.number_or("partial_rotary_factor", 1));
    if (rope.type == "default" || rope.type == "none") rope.scaling = Json();
    return rope;
}

}  // namespace nibble
