// Reads and writes config.json in Python's dialect: JSON plus the bare tokens Infinity, -Infinity and NaN, which are
// read as numbers and written as tokens.
#pragma once

#include "base/json.h"

#include <filesystem>
#include <string>
#include <vector>

namespace nibble {

Result<Json> parse_config(std::string_view text);
Result<Json> read_config(const std::filesystem::path& path);

// Replaces numbers that are not finite by {"__float__": "Infinity"}, as in transformers 5, for output that must be
// JSON.
Json tag_special_floats(Json value);

// Returns the text with keys in their order, `indent` spaces and a newline at the end. Error: text that is not UTF-8.
Result<std::string> config_text(const Json& config, int indent);

// Appends a member without searching for its key: objects of base/json.h search linearly, and a model has up to 10^5
// layers. Precondition: `object` is an object without `key`.
void append_member(Json& object, std::string key, Json value);

// Reads a list of names; empty: the key is absent or null. Error: another type.
Result<std::vector<std::string>> read_names(const Json& object, const char* key);

// Returns the value as one line of ASCII for a message, at most 80 bytes.
std::string show_value(const Json& value);

}  // namespace nibble
