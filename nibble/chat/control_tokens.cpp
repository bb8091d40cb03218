#include "chat/control_tokens.h"

#include <algorithm>

namespace nibble {

std::vector<TokenId> control_tokens(const Tokenizer& tokenizer) {
    std::vector<TokenId> out;
    for (const TokenId id : tokenizer.added_tokens()) {
        const std::string_view text = tokenizer.token(id).value_or("");
        if ((text.starts_with('<') && text.ends_with('>')) || (text.starts_with('[') && text.ends_with(']')))
            out.push_back(id);
    }
    std::sort(out.begin(), out.end());
    return out;
}

}  // namespace nibble
