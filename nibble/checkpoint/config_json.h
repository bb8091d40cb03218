// config.json as Python writes it: JSON plus the bare tokens Infinity, -Infinity and NaN, which base/json.h reads as
// strings of that spelling and the writer below puts back bare.
#pragma once

#include "base/json.h"

#include <filesystem>
#include <string>
#include <vector>

namespace nibble {

// Error when a quoted string is spelled like one of the tokens: it could not be told apart when written back. (No
// published configuration has one.)
Result<Json> parse_config(std::string_view text);
Result<Json> read_config(const std::filesystem::path& path);

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
