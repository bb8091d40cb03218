// A language that is easy to check: the allowed tokens depend on all tokens so far.
#pragma once

#include "engine/request.h"

#include <algorithm>

namespace nibble::test {

struct ToyLanguage {
    int64_t vocab = 0;
    uint32_t seed = 0;
    int64_t share = 3;     // one of this many tokens is allowed
    int64_t length = 0;    // tokens of a whole text
    int64_t breaks = -1;   // after this many tokens nothing is allowed although the text is incomplete; -1: never
    int64_t refuses = -1;  // after this many tokens an allowed token is rejected; -1: never
};

class ToyConstraint : public TokenConstraint {
public:
    explicit ToyConstraint(const ToyLanguage& language) : l_(language), state_(language.seed * 2654435761u + 1) {}
    std::unique_ptr<TokenConstraint> copy() const override { return std::make_unique<ToyConstraint>(*this); }
    void mask(std::span<uint32_t> allowed) override {
        std::ranges::fill(allowed, 0u);
        for (int32_t t = 0; t < l_.vocab; ++t)
            if (follows(t)) allowed[static_cast<size_t>(t) / 32] |= 1u << t % 32;
    }
    bool accept(int32_t token) override {
        if (!follows(token) || said_ == l_.refuses) return false;
        state_ = mixed(state_ ^ static_cast<uint32_t>(token));
        ++said_;
        return true;
    }
    bool may_end() const override { return state_ % 4 == 0; }
    bool finished() const override { return said_ == l_.length; }
    // Returns true if `ids` is a text of the language.
    static bool holds(const ToyLanguage& language, std::span<const int32_t> ids) {
        ToyConstraint c(language);
        return std::ranges::all_of(ids, [&](int32_t id) { return c.accept(id); });
    }

private:
    static uint32_t mixed(uint32_t x) {
        x ^= x >> 16, x *= 0x7FEB352Du;
        x ^= x >> 15, x *= 0x846CA68Bu;
        return x ^ x >> 16;
    }
    bool follows(int32_t token) const {
        if (said_ == l_.breaks || said_ == l_.length || token < 0 || token >= l_.vocab) return false;
        // Every state allows at least one token.
        const auto id = static_cast<uint32_t>(token);
        return id == state_ % static_cast<uint32_t>(l_.vocab) ||
               mixed(state_ + id) % static_cast<uint32_t>(l_.share) == 0;
    }
    ToyLanguage l_;
    uint32_t state_;
    int64_t said_ = 0;
};

}  // namespace nibble::test
