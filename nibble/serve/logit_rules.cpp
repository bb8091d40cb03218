#include "serve/logit_rules.h"

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

constexpr float never = -INFINITY;

void set_bit(std::vector<uint32_t>& mask, int32_t id) {
    mask[static_cast<size_t>(id) / 32] |= uint32_t{1} << static_cast<uint32_t>(id) % 32;
}

}  // namespace

bool LogitRules::touch(int64_t answer) const {
    const Request& r = *request_;
    return r.constraint || !r.allowed.empty() || !r.bad_words.empty() || !r.bias.empty() ||
           (answer < r.min_tokens && !r.eos.empty());
}

void LogitRules::prepare(int64_t vocab, int64_t answer, TokenConstraint* constraint) {
    const Request& r = *request_;
    if (!constraint && r.allowed.empty()) return;
    mask_.assign(static_cast<size_t>(vocab + 31) / 32, 0);
    if (constraint) constraint->mask(mask_);
    if (!r.allowed.empty()) {
        std::vector<uint32_t> allowed(mask_.size());
        for (const int32_t id : r.allowed) set_bit(allowed, id);
        for (size_t i = 0; i < mask_.size(); ++i) mask_[i] = constraint ? mask_[i] & allowed[i] : allowed[i];
    }
    for (const int32_t id : r.eos) {
        mask_[static_cast<size_t>(id) / 32] &= ~(uint32_t{1} << static_cast<uint32_t>(id) % 32);
        if (!constraint || constraint->may_end()) set_bit(mask_, id);
    }
    prepared_ = answer;
}

bool LogitRules::apply(std::span<float> logits, std::span<const int32_t> answer, TokenConstraint* constraint) {
    const Request& r = *request_;
    const bool early = std::ssize(answer) < r.min_tokens;
    if (constraint || !r.allowed.empty()) {
        if (prepared_ != std::ssize(answer)) prepare(std::ssize(logits), std::ssize(answer), constraint);
        for (size_t i = 0; i < logits.size(); ++i)
            if (!(mask_[i / 32] >> i % 32 & 1)) logits[i] = never;
    }
    for (const std::vector<int32_t>& word : r.bad_words) {
        const auto begins = std::span(word).first(word.size() - 1);
        if (answer.size() >= begins.size() && std::ranges::equal(answer.last(begins.size()), begins))
            logits[static_cast<size_t>(word.back())] = never;
    }
    if (early)
        for (const int32_t id : r.eos) logits[static_cast<size_t>(id)] = never;
    for (const auto& [id, value] : r.bias) logits[static_cast<size_t>(id)] += value;
    return std::ranges::any_of(logits, [](float v) { return v != never; });
}

}  // namespace nibble
