// Philox4x32-10: random numbers as a function of (key, counter). A draw is identified by its purpose, not by the thread
// that computes it. Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
// tests/base/philox_test.cpp has known answers from the authors' Random123 library.
#pragma once

#include "base/host_device.h"

#include <cstdint>

namespace nibble {

struct PhiloxBlock {
    uint32_t word[4];
};

NIBBLE_HD constexpr PhiloxBlock philox4x32(PhiloxBlock counter, uint32_t key0, uint32_t key1) {
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = uint64_t{0xD2511F53u} * counter.word[0];
        const uint64_t b = uint64_t{0xCD9E8D57u} * counter.word[2];
        counter = {{static_cast<uint32_t>(b >> 32) ^ counter.word[1] ^ key0, static_cast<uint32_t>(b),
                    static_cast<uint32_t>(a >> 32) ^ counter.word[3] ^ key1, static_cast<uint32_t>(a)}};
        key0 += 0x9E3779B9u;  // golden ratio
        key1 += 0xBB67AE85u;  // sqrt(3) - 1
    }
    return counter;
}

// The purpose of a stream of draws: the run's seed and a number for the role (step, layer, tensor). Draw `index` of a
// stream has 128 bits; callers define which bits belong to which element.
struct PhiloxStream {
    uint64_t seed = 0, role = 0;

    NIBBLE_HD constexpr PhiloxBlock block(uint64_t index) const {
        return philox4x32({{static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                            static_cast<uint32_t>(role), static_cast<uint32_t>(role >> 32)}},
                          static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
    }
    // Returns sixteen random bits for element i of a tensor. Eight elements share a block; even ones use the low half
    // of a word.
    NIBBLE_HD constexpr uint32_t bits16(uint64_t i) const {
        const PhiloxBlock b = block(i / 8);
        return b.word[i / 2 % 4] >> (i % 2 * 16) & 0xFFFFu;
    }
};

}  // namespace nibble
