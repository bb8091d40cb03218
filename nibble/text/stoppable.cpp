#include "text/stoppable.h"

namespace nibble {

Result<std::vector<TokenId>> encode_stoppable(const Tokenizer& tokenizer, std::string_view text,
                                              const EncodeOptions& options, const std::atomic<bool>* stop) {
    MeterLimits limits = MeterLimits::for_text(text.size());
    limits.tokens = options.most_tokens;
    limits.cancel = stop;
    Meter meter(limits);
    return tokenizer.encode(text, options, meter);
}

}  // namespace nibble
