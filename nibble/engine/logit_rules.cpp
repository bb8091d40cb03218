#include "engine/logit_rules.h"

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

constexpr float never = -INFINITY;

}  // namespace

bool LogitRules::masks(int64_t answer) const {
    return request_->constraint || !lists_->allowed.empty() || lists_->bans() ||
           (answer < request_->min_tokens && !lists_->ends.empty());
}

std::span<const uint32_t> LogitRules::mask(int64_t vocab, std::span<const int32_t> answer,
                                           TokenConstraint* constraint) {
    if (masked_ == std::ssize(answer)) return mask_;
    masked_ = -1;
    mask_.clear();
    const auto count = std::ssize(answer);
    if (masks(count)) fill(vocab, answer, constraint);
    masked_ = count;
    return mask_;
}

void LogitRules::fill(int64_t vocab, std::span<const int32_t> answer, TokenConstraint* constraint) {
    const TokenLists& lists = *lists_;
    const bool limited = constraint || !lists.allowed.empty();
    const bool early = std::ssize(answer) < request_->min_tokens;
    const bool may_end = !early && (!constraint || constraint->may_end());
    mask_.assign(static_cast<size_t>(vocab + 31) / 32, limited ? 0 : ~uint32_t{0});
    if (constraint) constraint->mask(mask_);
    if (!lists.allowed.empty())
        for (size_t i = 0; i < mask_.size(); ++i)
            mask_[i] = constraint ? mask_[i] & lists.allowed[i] : lists.allowed[i];
    if (!lists.ends.empty() && (limited || early))
        for (size_t i = 0; i < mask_.size(); ++i)
            mask_[i] = may_end ? mask_[i] | lists.ends[i] : mask_[i] & ~lists.ends[i];
    if (!lists.banned.empty())
        for (size_t i = 0; i < mask_.size(); ++i) mask_[i] &= ~lists.banned[i];
    if (!lists.bad_words.empty() && !answer.empty()) {
        auto word = std::ranges::lower_bound(lists.bad_words, answer.back(), {},
                                             [](const TokenLists::BadWord& w) { return w.before.back(); });
        for (; word != lists.bad_words.end() && word->before.back() == answer.back(); ++word)
            if (answer.size() >= word->before.size() &&
                std::ranges::equal(answer.last(word->before.size()), word->before))
                mask_[static_cast<size_t>(word->last) / 32] &= ~(uint32_t{1} << static_cast<uint32_t>(word->last) % 32);
    }
    if (vocab % 32 != 0) mask_.back() &= (uint32_t{1} << vocab % 32) - 1;
}

bool LogitRules::apply(std::span<float> logits, std::span<const int32_t> answer, TokenConstraint* constraint) {
    const auto allowed = mask(std::ssize(logits), answer, constraint);
    if (!allowed.empty())
        for (size_t i = 0; i < logits.size(); ++i)
            if (!(allowed[i / 32] >> i % 32 & 1)) logits[i] = never;
    for (const auto& [id, value] : request_->bias) logits[static_cast<size_t>(id)] += value;
    return std::ranges::any_of(logits, [](float v) { return v != never; });
}

}  // namespace nibble
