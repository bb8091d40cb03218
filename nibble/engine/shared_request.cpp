#include "engine/shared_request.h"

#include <algorithm>

namespace nibble {
namespace {

TokenBits bits_of(std::span<const int32_t> ids, int64_t vocab) {
    TokenBits bits;
    if (ids.empty()) return bits;
    bits.resize(static_cast<size_t>(vocab + 31) / 32);
    for (const int32_t id : ids) bits[static_cast<size_t>(id) / 32] |= uint32_t{1} << static_cast<uint32_t>(id) % 32;
    return bits;
}

}  // namespace

TokenLists::TokenLists(const Request& request, int64_t vocab)
    : ends(bits_of(request.eos, vocab)), allowed(bits_of(request.allowed, vocab)) {
    std::vector<int32_t> single;
    for (const std::vector<int32_t>& word : request.bad_words) {
        if (word.size() == 1)
            single.push_back(word[0]);
        else
            bad_words.push_back({{word.begin(), word.end() - 1}, word.back()});
    }
    banned = bits_of(single, vocab);
    std::ranges::stable_sort(bad_words, {}, [](const BadWord& word) { return word.before.back(); });
}

}  // namespace nibble
