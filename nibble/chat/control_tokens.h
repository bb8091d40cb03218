// The control tokens of a model, which must not come from text of users, tools or documents.
#pragma once

#include "text/tokenizer.h"

#include <vector>

namespace nibble {

// Returns the added tokens in brackets that the tokenizer does not mark as special ("<think>", "[TOOL_CALLS]"), sorted:
// the value for EncodeOptions::control, which adds the special tokens. Added tokens that are white space or words are
// text.
std::vector<TokenId> control_tokens(const Tokenizer& tokenizer);

}  // namespace nibble
