// config.json as Python writes it: JSON plus the bare tokens Infinity, -Infinity and NaN. They are read as numbers and
// written as tokens again.
#pragma once

#include "base/json.h"

#include <filesystem>
#include <string>
#include <vector>

namespace nibble {

Result<Json> parse_config(std::string_view text);
Result<Json> read_config(const std::filesystem::path& path);

// Numbers that are not finite as {"__float__": "Infinity"}, as transformers 5 writes them: for output that must be
// JSON.
Json tag_special_floats(Json value);

// Keys in their order, `indent` spaces, a newline at the end. Error: text that is not UTF-8.
Result<std::string> config_text(const Json& config, int indent);

// Appends without looking for the key: objects of base/json.h search linearly, and a model has up to 10^5 layers.
// Precondition: `object` is an object without `key`.
void append_member(Json& object, std::string key, Json value);

// A list of names; empty when the key is absent or null.
Result<std::vector<std::string>> read_names(const Json& object, const char* key);

// The value as one line of ASCII for a message, at most 80 bytes.
std::string show_value(const Json& value);

}  // namespace nibble
