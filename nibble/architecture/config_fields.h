// Reads the fields of a canonical configuration (architecture/canonical_config.h). A field that stays unread is an
// error unless it is known not to change what the model computes.
#pragma once

#include "base/fields.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

class ConfigFields : public Fields {
public:
    // `what` begins every message: "config.json", "config.json: rope_scaling".
    ConfigFields(const Json& object, std::string what);

    // Reads a whole number in [least, 2^31). The first form is for required fields.
    Result<int64_t> integer(std::string_view key, int64_t least = 1);
    Result<int64_t> integer_or(std::string_view key, int64_t otherwise, int64_t least = 1);
    // Reads num_hidden_layers, at most 4096, because loops follow it before any tensor is looked up.
    Result<int64_t> layers();
    // Reads a number in [least, most]. The first form is for required fields. Bounds lie far outside of published
    // models, and inside of what FP32 arithmetic of the forward pass can hold.
    Result<double> number(std::string_view key, double least, double most);
    Result<double> number_or(std::string_view key, double otherwise, double least, double most);
    // Reads a number in [1e-9, 1e6], for factors that must not be zero.
    Result<double> factor(std::string_view key) { return number(key, 1e-9, 1e6); }
    Result<double> factor_or(std::string_view key, double otherwise) { return number_or(key, otherwise, 1e-9, 1e6); }
    Result<std::vector<double>> numbers(std::string_view key);  // finite; empty when absent
    Result<bool> boolean_or(std::string_view key, bool otherwise);
    Result<std::string> string_or(std::string_view key, std::string_view otherwise);
    Result<std::vector<std::string>> strings(std::string_view key);  // empty when absent
    Result<std::vector<int64_t>> integers(std::string_view key);     // a number or a list; empty when absent
};

}  // namespace nibble
