// JSON as nlohmann::ordered_json, parsed from untrusted text: depth-limited, duplicate keys refused, errors as values
// with line and column. Model configs written by Python may hold the bare tokens Infinity, -Infinity and NaN, which are
// not JSON; `python_constants` reads them as those numbers.
#pragma once

#include "base/error.h"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <string_view>
#include <vector>

// Compiled once, in json.cpp: without these lines every file that touches a document compiles the class again, which
// takes a fifth of the time of a build.
extern template class nlohmann::basic_json<nlohmann::ordered_map>;
extern template class std::vector<nlohmann::ordered_json>;
extern template class nlohmann::detail::iter_impl<const nlohmann::ordered_json>;

namespace nibble {

using Json = nlohmann::ordered_json;

struct JsonOptions {
    int max_depth = 64;
    bool python_constants = false;
    // Numbers that are no integers of 64 bits are strings, as they stand in the text.
    bool decimals_as_text = false;
};

Result<Json> parse_json(std::string_view text, const JsonOptions& options = {});
Result<Json> read_json_file(const std::filesystem::path& path, const JsonOptions& options = {});

}  // namespace nibble
