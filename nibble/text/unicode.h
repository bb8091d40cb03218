// Lossy UTF-8, white space and normal forms for tokenizers. Each invalid part, as utf8_step() delimits it, becomes one
// U+FFFD.
#pragma once

#include "base/utf8.h"

#include <string>
#include <string_view>

namespace nibble {

// Returns `text` as valid UTF-8, with U+FFFD for invalid parts.
std::string utf8_lossy(std::string_view text);

// Moves complete characters from the front of `pending` to `out`, with U+FFFD for bytes that cannot begin a character.
// At most three bytes remain.
void utf8_drain(std::string& pending, std::string& out);

bool is_white_space(char32_t code);  // Unicode White_Space
bool is_word(char32_t code);         // letters, marks, decimal digits, connector punctuation

enum class NormalForm { nfc, nfd, nfkc, nfkd };

// Precondition: valid UTF-8. O(n log n) for any input: runs of combining marks are sorted, not bubbled.
std::string normal_form(std::string_view text, NormalForm form);

}  // namespace nibble
