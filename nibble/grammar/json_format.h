// Regular expressions for JSON Schema's "format".
#pragma once

#include <string_view>

namespace nibble {

// Returns a regular expression for the whole text, or "" for an unsupported format. It never accepts more than the
// format (dates exist, years have four digits), and sometimes less for simplicity (ipv6 without "::").
std::string_view format_pattern(std::string_view name);

}  // namespace nibble
