// UTF-8 by character, and untrusted text made fit for one line of a terminal. Invalid bytes are cut the way Python's
// and Rust's lossy decoders do it: one piece for each maximal part that could have begun a character (Unicode 3.9,
// table 3-8).
#pragma once

#include "base/error.h"

#include <cstddef>
#include <string>
#include <string_view>

namespace nibble {

struct Utf8Step {
    size_t size = 0;         // bytes of the character, or of the part that is not one; 0 only at the end of the text
    char32_t code = 0xFFFD;  // U+FFFD when not valid
    bool valid = false;
    bool cut = false;  // not valid, but more bytes after the end of the text could make it so
};

Utf8Step utf8_step(std::string_view text, size_t at);
bool utf8_valid(std::string_view text);
// Error: the first byte that is not UTF-8, by its place.
Status check_utf8(std::string_view text);
void utf8_append(std::string& out, char32_t code);
// A file's content behind the mark (U+FEFF) that some editors put in front: a sign of the encoding, no text.
std::string_view without_byte_order_mark(std::string_view content);

// `text` on one line, nothing in it that moves a cursor: control characters (C0, DEL, C1, line and paragraph
// separators, bidirectional overrides) become \n, \t, \r or \u{85}, bytes that are not UTF-8 \xff. What is longer than
// `most_bytes` keeps its beginning and its end. printable(printable(x)) == printable(x).
std::string printable(std::string_view text, size_t most_bytes = std::string::npos);

}  // namespace nibble
