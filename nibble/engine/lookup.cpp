#include "engine/lookup.h"

#include <algorithm>

namespace nibble {
namespace {

uint64_t hash_of(std::span<const int32_t> tokens) {
    uint64_t h = 0x9E3779B97F4A7C15u;
    for (const int32_t t : tokens) {
        h ^= static_cast<uint32_t>(t);
        h *= 0xBF58476D1CE4E5B9u;
        h ^= h >> 29;
    }
    return h;
}

}  // namespace

PromptLookup::PromptLookup(int64_t most, std::span<const int32_t> prompt, std::span<const int32_t> expected)
    : most_(most), ahead_(std::min<int64_t>(most, 4)) {
    if (expected.empty()) return;
    known_.assign(prompt.begin(), prompt.end());
    text_ = prompt.size();
    // Later places take precedence, so these tokens are found before the end of an earlier turn.
    const auto end = prompt.last(std::min(prompt.size(), longest));
    known_.insert(known_.end(), end.begin(), end.end());
    known_.insert(known_.end(), expected.begin(), expected.end());
}

std::vector<int32_t> PromptLookup::draft(std::span<const int32_t> text, int64_t limit) {
    drafted_ = false;
    known_.insert(known_.end(), text.begin() + std::ptrdiff_t(text_), text.end());
    text_ = text.size();
    const std::span<const int32_t> known = known_;
    // Indexes places before the last token, whose next token is known.
    for (; seen_ + 1 < known.size(); ++seen_)
        for (size_t n = shortest; n <= longest; ++n)
            if (seen_ + 1 >= n) places_[n - shortest][hash_of(known.subspan(seen_ + 1 - n, n))] = seen_ + 1;
    const auto most = static_cast<size_t>(std::clamp<int64_t>(std::min(ahead_, limit), 0, most_));
    for (size_t n = longest; n >= shortest && most > 0; --n) {
        if (text.size() < n) continue;
        const auto tail = text.last(n);
        const auto place = places_[n - shortest].find(hash_of(tail));
        if (place == places_[n - shortest].end()) continue;
        const size_t next = place->second;
        if (!std::ranges::equal(known.subspan(next - n, n), tail)) continue;
        // After the end of the text the draft continues with itself, so a loop repeats.
        std::vector<int32_t> out;
        while (out.size() < most) {
            const size_t at = next + out.size();
            out.push_back(at < known.size() ? known[at] : out[at - known.size()]);
        }
        drafted_ = true;
        return out;
    }
    return {};
}

void PromptLookup::learn(int64_t drafted, int64_t right) {
    if (drafted == 0 || !drafted_) return;
    if (right == drafted)
        ahead_ = std::min(most_, 2 * ahead_);
    else
        ahead_ = std::max<int64_t>(1, std::min(ahead_, right + 1));
}

}  // namespace nibble
