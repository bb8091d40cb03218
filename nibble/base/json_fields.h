// Typed access to the fields of a JSON object that nibble wrote itself (reports, journals). Errors name the key.
#pragma once

#include "base/json.h"

#include <concepts>
#include <limits>
#include <vector>

namespace nibble {

inline Result<const Json*> json_field(const Json& object, std::string_view key) {
    if (!object.is_object()) return fail("expected an object with '{}'", key);
    const auto found = object.find(key);
    if (found == object.end()) return fail("'{}' is missing", key);
    return &*found;
}

inline Result<const Json*> json_object(const Json& object, std::string_view key) {
    NIBBLE_TRY(const Json* field, json_field(object, key));
    if (!field->is_object()) return fail("'{}': expected an object", key);
    return field;
}

inline Result<const Json*> json_array(const Json& object, std::string_view key) {
    NIBBLE_TRY(const Json* field, json_field(object, key));
    if (!field->is_array()) return fail("'{}': expected an array", key);
    return field;
}

// Reads one value of the requested type; returns false if the type does not match. Integers must be integers that fit;
// floating-point targets accept any number.
inline bool json_value(const Json& json, bool& out) {
    if (json.is_boolean()) out = json.get<bool>();
    return json.is_boolean();
}
inline bool json_value(const Json& json, std::string& out) {
    if (json.is_string()) out = json.get<std::string>();
    return json.is_string();
}
template <std::integral T>
requires(!std::same_as<T, bool>) bool json_value(const Json& json, T& out) {
    const auto fits = [&](auto v) {
        if (!std::in_range<T>(v)) return false;
        out = static_cast<T>(v);
        return true;
    };
    if (json.is_number_unsigned()) return fits(json.get<uint64_t>());
    return json.is_number_integer() && fits(json.get<int64_t>());
}
template <std::floating_point T>
bool json_value(const Json& json, T& out) {
    if (json.is_number()) out = static_cast<T>(json.get<double>());
    return json.is_number();
}
template <class T>
bool json_value(const Json& json, std::vector<T>& out) {
    if (!json.is_array()) return false;
    out.clear();
    for (const Json& item : json)
        if (!json_value(item, out.emplace_back())) return false;
    return true;
}

template <class T>
Status json_get(const Json& object, std::string_view key, T& out) {
    NIBBLE_TRY(const Json* field, json_field(object, key));
    if (!json_value(*field, out)) return fail("'{}': wrong type or out of range", key);
    return Ok{};
}

}  // namespace nibble
