// UTF-8 by character, and untrusted text made safe for one line of a terminal. Invalid bytes are split like in Python's
// and Rust's lossy decoders: one part for each maximal prefix of a character (Unicode 3.9, table 3-8).
#pragma once

#include "base/error.h"

#include <cstddef>
#include <string>
#include <string_view>

namespace nibble {

struct Utf8Step {
    size_t size = 0;         // bytes of the character or invalid part; 0 only at the end of the text
    char32_t code = 0xFFFD;  // U+FFFD if not valid
    bool valid = false;
    bool cut = false;  // not valid, but further bytes after the end of the text could complete it
};

Utf8Step utf8_step(std::string_view text, size_t at);
bool utf8_valid(std::string_view text);
// Error: the position of the first byte that is not UTF-8.
Status check_utf8(std::string_view text);
void utf8_append(std::string& out, char32_t code);
// Returns the content of a file without a leading byte order mark (U+FEFF).
std::string_view without_byte_order_mark(std::string_view content);

// Returns `text` on one line without anything that moves a cursor. Control characters (C0, DEL, C1, line and paragraph
// separators, bidirectional overrides) become \n, \t, \r or \u{85}; bytes that are not UTF-8 become \xff. If the result
// is longer than `most_bytes`, its middle is cut out. printable(printable(x)) == printable(x).
std::string printable(std::string_view text, size_t most_bytes = std::string::npos);

}  // namespace nibble
