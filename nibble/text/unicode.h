// UTF-8, white space and normal forms, as tokenizers need them. Invalid bytes become U+FFFD the way Python's and Rust's
// lossy decoders do it: one for each maximal part that could have begun a character (Unicode 3.9, table 3-8).
#pragma once

#include <cstddef>
#include <cstdint>
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
void utf8_append(std::string& out, char32_t code);

// Valid UTF-8: `text` with U+FFFD for what is not.
std::string utf8_lossy(std::string_view text);

// Moves the characters that are complete from the front of `pending` to `out` (U+FFFD for what can never become one);
// at most three bytes stay.
void utf8_drain(std::string& pending, std::string& out);

bool is_white_space(char32_t code);  // Unicode White_Space
bool is_word(char32_t code);         // letters, marks, decimal digits, connector punctuation

enum class NormalForm { nfc, nfd, nfkc, nfkd };

// Precondition: valid UTF-8. O(n log n) on any input: runs of combining marks are sorted, not bubbled.
std::string normal_form(std::string_view text, NormalForm form);

}  // namespace nibble
