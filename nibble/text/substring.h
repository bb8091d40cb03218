// Searching in time linear in the text, whatever is searched for: std::string's own search compares the needle again at
// every place where its first byte fits.
#pragma once

#include "text/meter.h"

#include <string_view>

namespace nibble {

// Where `what` begins first in `text`, at `from` or later; npos: nowhere, or the meter refused (see meter.ok()).
size_t find_text(std::string_view text, std::string_view what, Meter& meter, size_t from = 0);
// Where it begins last.
size_t rfind_text(std::string_view text, std::string_view what, Meter& meter);

}  // namespace nibble
