// Encodes texts of jobs, which a user may stop.
#pragma once

#include "text/tokenizer.h"

#include <atomic>

namespace nibble {

// Encodes a text as tokenizer.encode(text, options) does. Once *stop is true, the work ends with an error of kind
// cancelled. `stop` may be null.
Result<std::vector<TokenId>> encode_stoppable(const Tokenizer& tokenizer, std::string_view text,
                                              const EncodeOptions& options, const std::atomic<bool>* stop);

}  // namespace nibble
