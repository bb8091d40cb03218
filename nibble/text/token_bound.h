// A lower bound of the number of tokens of a text that follows from its length alone, so that a text far beyond a limit
// is refused without being read.
#pragma once

#include "text/tokenizer_data.h"

#include <cstdint>

namespace nibble {

// Returns the largest number of bytes of text that one token can stand for, or 0 if no such number exists: a step of
// the tokenizer may remove text, or may join any number of unknown characters in one token.
int64_t most_bytes_per_token(const TokenizerData& data);

}  // namespace nibble
