// Reads the fields of a canonical configuration (architecture/canonical_config.h) once each. A field that is never read
// must be known to have no effect.
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
    // `what`: prefix of messages: "config.json", "config.json: rope_scaling".
    ConfigFields(const Json& object, std::string what) : object_(&object), what_(std::move(what)) {}

    // Returns a field and marks its key as read; nullptr: absent or null.
    const Json* find(std::string_view key);
    bool has(std::string_view key) { return find(key) != nullptr; }

    // Reads a whole number in [least, 2^31). Error of integer(): the field is absent. Errors of all readers: another
    // type or range; messages name the key.
    Result<int64_t> integer(std::string_view key, int64_t least = 1);
    Result<int64_t> integer_or(std::string_view key, int64_t otherwise, int64_t least = 1);
    // Reads num_hidden_layers, at most 4096, because loops follow it before any tensor is looked up.
    Result<int64_t> layers();
    // Reads a finite number.
    Result<double> number(std::string_view key);
    Result<double> number_or(std::string_view key, double otherwise);
    Result<bool> boolean_or(std::string_view key, bool otherwise);
    Result<std::string> string_or(std::string_view key, std::string_view otherwise);
    Result<std::vector<std::string>> strings(std::string_view key);  // empty: absent
    Result<std::vector<int64_t>> integers(std::string_view key);     // a number or a list; empty: absent

    // Error: the field is present with another value, which is not supported.
    Status must_be(std::string_view key, const Json& value);
    void ignore(std::string_view key) { read_.emplace(key); }
    // Error: a key that was not read, is not null, and is not in the list of fields without effect on the computation.
    Status all_read() const;

    Error bad(std::string_view key, std::string_view why) const;

private:
    const Json* object_;
    std::string what_;
    std::set<std::string, std::less<>> read_;
};

}  // namespace nibble
