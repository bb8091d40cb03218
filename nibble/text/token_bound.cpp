#include "text/token_bound.h"

#include "base/utf8.h"

#include <fmt/format.h>
#include <algorithm>

namespace nibble {
namespace {

// Returns whether every byte has a token, so that no character is unknown.
bool every_byte_has_a_token(const TokenizerData& data) {
    if (!data.pre_tokenizer.byte_level()) {
        for (int byte = 0; byte < 256; ++byte)
            if (!data.vocabulary.find(fmt::format("<0x{:02X}>", byte))) return false;
        return true;
    }
    const ByteAlphabet alphabet;
    int found = 0;
    for (char32_t character = 0; character < 512; ++character) {
        if (!alphabet.byte(character)) continue;
        std::string text;
        utf8_append(text, character);
        found += data.vocabulary.find(text).has_value();
    }
    return found == 256;
}

bool takes_white_space(const AddedTokenFinder& finder) {
    return std::ranges::any_of(finder.tokens(), [](const AddedToken& token) { return token.lstrip || token.rstrip; });
}

}  // namespace

int64_t most_bytes_per_token(const TokenizerData& data) {
    const int64_t shrink = data.normalizer.most_shrink();
    if (shrink == 0 || !data.pre_tokenizer.keeps_text() || !data.model->encodes_bytes() ||
        !every_byte_has_a_token(data) || takes_white_space(data.raw_added) || takes_white_space(data.normalized_added))
        return 0;
    // A token of the byte alphabet has at least as many bytes as the text that it stands for.
    size_t longest = 1;
    for (uint32_t id = 0; id < data.vocabulary.size(); ++id)
        if (data.vocabulary.has(id)) longest = std::max(longest, data.vocabulary.text(id).size());
    return static_cast<int64_t>(longest) * shrink;
}

}  // namespace nibble
