// Input: a tokenizer file, then, after the first byte 1, a text. It must be refused with a one-line message, or give
// valid ids that decode to valid UTF-8, and to the same text at once and as a stream, except for runs of invalid bytes.
// A first byte 'M' selects tokenizer.model.
#include "base/error.h"
#include "judge.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

using namespace nibble;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size == 0) return 0;
    const Judge judge;
    const std::string_view all(reinterpret_cast<const char*>(data), size);
    const bool sentencepiece = all[0] == 'M';
    // Binary files may contain the byte 1, so their text begins after the last one.
    const size_t cut = sentencepiece ? all.rfind('\1') : all.find('\1');
    const std::string_view file = all.substr(sentencepiece, cut == all.npos ? cut : cut - sentencepiece);
    const std::string_view text = cut == all.npos ? "" : all.substr(cut + 1);
    const auto tokenizer = sentencepiece ? Tokenizer::from_sentencepiece(file) : Tokenizer::from_json(file);
    if (!tokenizer.ok()) {
        require_message(tokenizer.error());
        return 0;
    }
    for (const bool special : {false, true}) {
        const EncodeOptions options{.add_special = special, .parse_special = special};
        Meter meter({.steps = 1'000'000, .bytes = 64 << 20}), second({.steps = 1'000'000, .bytes = 64 << 20});
        const auto ids = tokenizer->encode(text, options, meter);
        if (!ids.ok()) {
            require_message(ids.error());
            continue;
        }
        const auto again = tokenizer->encode(text, options, second);  // cached, so not more expensive
        require(again.ok() && *again == *ids && second.steps_used() <= meter.steps_used());
        StreamDecoder stream(*tokenizer);
        std::string streamed;
        for (const TokenId id : *ids) {
            require(tokenizer->token(id).has_value());
            const std::string part = stream.push(id);
            require(utf8_valid(part));
            streamed += part;
        }
        streamed += stream.finish();
        const std::string decoded = tokenizer->decode(*ids);
        require(utf8_valid(decoded));
        require(decoded == streamed || decoded.find("\uFFFD") != decoded.npos);
    }
    return 0;
}
