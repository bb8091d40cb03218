// Reads the fields of JSON objects: configurations, request bodies, files that nibble wrote. A message names the
// subject and the key. Fields that were not read can be refused.
#pragma once

#include "base/json.h"

#include <concepts>
#include <initializer_list>
#include <limits>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble {

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

// The text of the expected type, for messages after json_value() failed.
template <class T>
struct JsonKind {
    static std::string expected() {
        if constexpr (std::same_as<T, bool>)
            return "true or false";
        else if constexpr (std::same_as<T, std::string>)
            return "a string";
        else if constexpr (std::integral<T> && sizeof(T) == 8)
            return std::is_signed_v<T> ? "a whole number" : "a whole number of at least 0";
        else if constexpr (std::integral<T>)
            return fmt::format("a whole number in [{}, {}]", +std::numeric_limits<T>::min(),
                               +std::numeric_limits<T>::max());
        else
            return "a number";
    }
};
template <class T>
struct JsonKind<std::vector<T>> {
    static std::string expected() { return fmt::format("a list, each item {}", JsonKind<T>::expected()); }
};

// The policy of a reader. Its texts and names must outlive the Fields.
struct FieldPolicy {
    std::string_view unknown = "is not a known field";  // the message of all_read() about an unread field
    std::span<const std::string_view> ignorable = {};   // fields that may stay unread
    bool shows_values = false;                          // messages quote the value after the key
};

class Fields {
public:
    // `subject` begins every message ("config.json: rope_scaling"); empty: messages begin with the key. `object`
    // outlives this.
    explicit Fields(const Json& object, std::string subject = {}, const FieldPolicy& policy = {})
        : object_(&object), subject_(std::move(subject)), policy_(policy) {}

    // Null if the field is absent or null. The key counts as read.
    const Json* find(std::string_view key);
    bool has(std::string_view key) { return find(key) != nullptr; }
    void ignore(std::string_view key) { read_.emplace(key); }
    void ignore(std::initializer_list<std::string_view> keys);

    // Keeps `out` if the field is absent. Error: another type, or out of the type's range.
    template <class T>
    Status read(std::string_view key, T& out) {
        const Json* field = find(key);
        return field ? convert(key, *field, out) : Status(Ok{});
    }
    // Like read(). Error also for a value outside [least, most].
    template <class T>
    Status read_in(std::string_view key, T& out, T least, T most) {
        T value = out;
        NIBBLE_CHECK(read(key, value));
        if (!has(key)) return Ok{};
        if (!(value >= least && value <= most))
            return bad(key, fmt::format("{} is not in [{}, {}]", value, least, most));
        out = value;
        return Ok{};
    }
    // Reads a required field. null is a value of the wrong type here.
    template <class T>
    Status need(std::string_view key, T& out) {
        NIBBLE_TRY(const Json* field, need(key));
        return convert(key, *field, out);
    }
    Result<const Json*> need(std::string_view key);
    Result<const Json*> object(std::string_view key);
    Result<const Json*> array(std::string_view key);

    // Error if the field is present and has another value, because no other one is supported.
    Status must_be(std::string_view key, const Json& value);
    // Error if a field was not read, is not null and is not ignorable; suggests the nearest field that was read.
    Status all_read() const;

    // "SUBJECT: 'KEY': WHY", or "SUBJECT: 'KEY' is VALUE: WHY" by the policy. blamed() is KEY from now on.
    Error bad(std::string_view key, std::string_view why) const;
    Error missing(std::string_view key) const;
    const std::string& blamed() const { return blamed_; }

protected:
    void set_blamed(std::string_view key) { blamed_ = key; }

private:
    template <class T>
    Status convert(std::string_view key, const Json& field, T& out) const {
        T value{};
        if (!json_value(field, value)) return bad(key, "expected " + JsonKind<T>::expected());
        out = std::move(value);
        return Ok{};
    }
    std::string head(std::string_view key) const;

    const Json* object_;
    std::string subject_;
    FieldPolicy policy_;
    std::set<std::string, std::less<>> read_;
    mutable std::string blamed_;
};

}  // namespace nibble
