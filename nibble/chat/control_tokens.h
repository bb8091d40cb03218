// Which tokens steer a model, and so must not come from what a user, a tool or a document wrote.
#pragma once

#include "text/tokenizer.h"

#include <vector>

namespace nibble {

// Added tokens in brackets that the tokenizer does not call special ("<think>", "[TOOL_CALLS]"), sorted: for
// EncodeOptions::control, which adds the special ones. Runs of white space and words among added tokens are text.
std::vector<TokenId> control_tokens(const Tokenizer& tokenizer);

}  // namespace nibble
