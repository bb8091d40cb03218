#include "serve/logit_rules.h"

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

constexpr float never = -INFINITY;

uint32_t bit(int32_t id) { return uint32_t{1} << static_cast<uint32_t>(id) % 32; }

}  // namespace

bool LogitRules::masks(int64_t answer) const {
    const Request& r = *request_;
    return r.constraint || !r.allowed.empty() || !r.bad_words.empty() || (answer < r.min_tokens && !r.eos.empty());
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
    const Request& r = *request_;
    const auto word = [&](int32_t id) -> uint32_t& { return mask_[static_cast<size_t>(id) / 32]; };
    mask_.assign(static_cast<size_t>(vocab + 31) / 32, constraint || !r.allowed.empty() ? 0 : ~uint32_t{0});
    if (constraint) constraint->mask(mask_);
    if (!r.allowed.empty()) {
        std::vector<uint32_t> allowed(mask_.size());
        for (const int32_t id : r.allowed) allowed[static_cast<size_t>(id) / 32] |= bit(id);
        for (size_t i = 0; i < mask_.size(); ++i) mask_[i] = constraint ? mask_[i] & allowed[i] : allowed[i];
    }
    const bool early = std::ssize(answer) < r.min_tokens;
    if (constraint || !r.allowed.empty() || early)
        for (const int32_t id : r.eos) {
            word(id) &= ~bit(id);
            if (!early && (!constraint || constraint->may_end())) word(id) |= bit(id);
        }
    for (const std::vector<int32_t>& bad : r.bad_words) {
        const auto begins = std::span(bad).first(bad.size() - 1);
        if (answer.size() >= begins.size() && std::ranges::equal(answer.last(begins.size()), begins))
            word(bad.back()) &= ~bit(bad.back());
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
