// JSON as nlohmann::ordered_json, parsed from untrusted text. Depth is limited, duplicate keys are errors, and errors
// are values with line and column. Model configs written by Python may contain the tokens Infinity, -Infinity and NaN,
// which are not JSON; `python_constants` reads them as numbers.
#pragma once

#include "base/error.h"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <string_view>
#include <vector>

// Instantiated once, in json.cpp. Otherwise every file that uses a document would compile the class again, a fifth of
// the time of a build.
extern template class nlohmann::basic_json<nlohmann::ordered_map>;
extern template class std::vector<nlohmann::ordered_json>;
extern template class nlohmann::detail::iter_impl<const nlohmann::ordered_json>;

namespace nibble {

using Json = nlohmann::ordered_json;

struct JsonOptions {
    int max_depth = 64;
    bool python_constants = false;
    // Numbers that are not 64-bit integers become strings with the original text.
    bool decimals_as_text = false;
};

Result<Json> parse_json(std::string_view text, const JsonOptions& options = {});
Result<Json> read_json_file(const std::filesystem::path& path, const JsonOptions& options = {});

}  // namespace nibble
