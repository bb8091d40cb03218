// Philox4x32-10 with the parts shared by a launch precomputed: the key schedule, and the products of the counter's
// upper half, which is the stream's role. Equal to base/philox.h.
#pragma once

#include "base/philox.h"

namespace nibble::cuda {

struct PhiloxRounds {
    uint32_t key0[10], key1[10];
    uint32_t role_high, role_product_high, role_product_low;  // first round: 0xCD9E8D57 * low half of the role

    explicit PhiloxRounds(const PhiloxStream& stream) {
        const uint64_t product = multiplier1 * static_cast<uint32_t>(stream.role);
        role_high = static_cast<uint32_t>(stream.role >> 32);
        role_product_high = static_cast<uint32_t>(product >> 32);
        role_product_low = static_cast<uint32_t>(product);
        for (uint32_t round = 0; round < 10; ++round) {
            key0[round] = static_cast<uint32_t>(stream.seed) + round * 0x9E3779B9u;
            key1[round] = static_cast<uint32_t>(stream.seed >> 32) + round * 0xBB67AE85u;
        }
    }

    // Returns block `index` of the stream. The compiler hoists what depends on the upper half of `index` only.
    __device__ PhiloxBlock block(uint64_t index) const {
        const uint64_t first = multiplier0 * static_cast<uint32_t>(index);
        PhiloxBlock c{{role_product_high ^ static_cast<uint32_t>(index >> 32) ^ key0[0], role_product_low,
                       static_cast<uint32_t>(first >> 32) ^ role_high ^ key1[0], static_cast<uint32_t>(first)}};
#pragma unroll
        for (int round = 1; round < 10; ++round) {
            const uint64_t a = multiplier0 * c.word[0], b = multiplier1 * c.word[2];
            c = {{static_cast<uint32_t>(b >> 32) ^ c.word[1] ^ key0[round], static_cast<uint32_t>(b),
                  static_cast<uint32_t>(a >> 32) ^ c.word[3] ^ key1[round], static_cast<uint32_t>(a)}};
        }
        return c;
    }

private:
    static constexpr uint64_t multiplier0 = 0xD2511F53u, multiplier1 = 0xCD9E8D57u;
};

}  // namespace nibble::cuda
