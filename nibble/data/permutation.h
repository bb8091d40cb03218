// A permutation of [0, n) as a function without a table: a Feistel network over the smallest power of four that is at
// least n, iterated until the value is below n (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA
// 2002). Its round function is Philox, keyed by seed and role.
#pragma once

#include "base/philox.h"

#include <bit>
#include <cstdint>

namespace nibble {

class Permutation {
public:
    // Requires 1 <= n <= 2^62.
    Permutation(uint64_t n, PhiloxStream stream)
        : n_(n), half_((std::bit_width(n - 1) + 1) / 2), mask_((uint64_t{1} << half_) - 1), stream_(stream) {}

    // Returns distinct values below n for distinct i. Requires i < n.
    uint64_t at(uint64_t i) const {
        do i = shuffled(i);
        while (i >= n_);
        return i;
    }

private:
    static constexpr uint64_t rounds = 6;

    uint64_t shuffled(uint64_t value) const {
        uint64_t left = value >> half_, right = value & mask_;
        for (uint64_t round = 0; round < rounds; ++round) {
            const PhiloxBlock b = stream_.block(right * rounds + round);
            const uint64_t mixed = left ^ ((uint64_t{b.word[1]} << 32 | b.word[0]) & mask_);
            left = right;
            right = mixed;
        }
        return left << half_ | right;
    }

    uint64_t n_;
    int half_;
    uint64_t mask_;
    PhiloxStream stream_;
};

}  // namespace nibble
