// The texts of JSON Schema's "format".
#pragma once

#include <string_view>

namespace nibble {

// A regular expression for the whole text; empty: a format that is not supported. Takes no more than the format does
// (dates exist, years have four digits), and less where that is simpler (ipv6 without "::").
std::string_view format_pattern(std::string_view name);

}  // namespace nibble
