// Substring search in linear time for every needle. std::string's search compares the needle again at each position
// where its first byte matches.
#pragma once

#include "text/meter.h"

#include <string_view>

namespace nibble {

// Returns the first position of `what` at or after `from`; npos: absent, or the meter's limit was reached (see
// meter.ok()).
size_t find_text(std::string_view text, std::string_view what, Meter& meter, size_t from = 0);
// Returns the last position of `what`; npos as above.
size_t rfind_text(std::string_view text, std::string_view what, Meter& meter);

}  // namespace nibble
