// HTML pages that stand alone: a JSON document in a page whose one script (nibble/page/assets) draws the document in
// the browser. No network request (a content security policy forbids them); light and dark; printable; works from a
// file.
#pragma once

#include "base/json.h"

#include <string>
#include <string_view>

namespace nibble {

// Escapes & < > " '. Bytes that are not UTF-8 and control characters become U+FFFD.
std::string escape_html(std::string_view text);

// Returns a page that the function `view` (assets/views/VIEW.js) draws from `data`. The browser reloads the page every
// `reload_seconds`; 0: never. The same arguments give the same bytes. Numbers that are not finite become null.
std::string document(std::string_view title, std::string_view view, const Json& data, int reload_seconds = 0);

// Returns a number for a page: six significant digits, or null if it is not finite.
Json rounded(double value);

}  // namespace nibble
