// Lossy UTF-8, white space and normal forms, as tokenizers need them. Invalid bytes become one U+FFFD for each piece of
// utf8_step.
#pragma once

#include "base/utf8.h"

#include <string>
#include <string_view>

namespace nibble {

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
