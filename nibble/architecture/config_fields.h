// The fields of a canonical configuration (architecture/canonical_config.h), read once each: what is left unread at the
// end must be known not to matter.
#pragma once

#include "base/error.h"
#include "base/json.h"

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

class ConfigFields {
public:
    // `what` is put in front of messages: "config.json", "config.json: rope_scaling".
    ConfigFields(const Json& object, std::string what) : object_(&object), what_(std::move(what)) {}

    // nullptr: absent or null. Either way the key counts as read.
    const Json* find(std::string_view key);
    bool has(std::string_view key) { return find(key) != nullptr; }

    // A whole number in [least, 2^31). The first form is for required fields.
    Result<int64_t> integer(std::string_view key, int64_t least = 1);
    Result<int64_t> integer_or(std::string_view key, int64_t otherwise, int64_t least = 1);
    // num_hidden_layers: at most 4096, since loops follow it before any tensor is looked for.
    Result<int64_t> layers();
    // Finite.
    Result<double> number(std::string_view key);
    Result<double> number_or(std::string_view key, double otherwise);
    Result<bool> boolean_or(std::string_view key, bool otherwise);
    Result<std::string> string_or(std::string_view key, std::string_view otherwise);
    Result<std::vector<std::string>> strings(std::string_view key);  // empty when absent
    Result<std::vector<int64_t>> integers(std::string_view key);     // a number or a list; empty when absent

    // The field, when present, must have this value: another one is not supported.
    Status must_be(std::string_view key, const Json& value);
    void ignore(std::string_view key) { read_.emplace(key); }
    // Every key was read, is null, or is in a list of fields that never change the maths.
    Status all_read() const;

    Error bad(std::string_view key, std::string_view why) const;

private:
    const Json* object_;
    std::string what_;
    std::set<std::string, std::less<>> read_;
};

}  // namespace nibble
