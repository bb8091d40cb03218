// Values of E2M1 computed without codes equal those of the codes.
#include "formats/e2m1_values.h"
#include "formats/training.h"

#include <gtest/gtest.h>

#include <cmath>

namespace nibble {
namespace {

uint32_t nearest_bits(float x) { return float_bits(e2m1_to_float(e2m1_from_float(x))); }
uint32_t drawn_bits(float x, int byte) {
    return float_bits(e2m1_to_float(e2m1_stochastic_byte(x, static_cast<uint8_t>(byte))));
}

// Both signs of every bit pattern from 2^-4 to 2^4, and of every 1021st beyond, including zeros, subnormals, infinities
// and NaN.
TEST(E2m1Values, NearestIsTheCodesValue) {
    int64_t compared = 0, wrong = 0;
    for (uint64_t bits = 0; bits <= 0x7FFFFFFFu; bits += bits >= 0x3D800000u && bits < 0x41800000u ? 1 : 1021) {
        const auto x = float_from_bits(static_cast<uint32_t>(bits));
        ++compared;
        wrong += float_bits(e2m1_value(x)) != nearest_bits(x);
        if (x == x) wrong += float_bits(e2m1_value(-x)) != nearest_bits(-x);
    }
    for (const float x : {0.0f, -0.0f, 0x1p-149f, -0x1p-149f, FLT_MAX, -FLT_MAX, HUGE_VALF, -HUGE_VALF, std::nanf("")})
        EXPECT_EQ(float_bits(e2m1_value(x)), nearest_bits(x)) << x;
    EXPECT_EQ(wrong, 0);
    EXPECT_GT(compared, 60'000'000);
}

// All 256 bytes with numbers of 14 significant bits, and with numbers that a byte carries just above, to or just below
// the next value.
TEST(E2m1Values, StochasticIsTheCodesValue) {
    int64_t wrong = 0;
    for (int byte = 0; byte < 256; ++byte) {
        const uint32_t word = 0x01010101u * static_cast<uint32_t>(byte), random = uint32_t(byte) << 14;
        for (int i = 0; i < 4; ++i) EXPECT_EQ(e2m1_random(word, i), random);
        const auto compare = [&](float x) {
            wrong += float_bits(e2m1_drawn_value(e2m1_drawn(x, random))) != drawn_bits(x, byte);
            if (x == x) wrong += float_bits(e2m1_drawn_value(e2m1_drawn(-x, random))) != drawn_bits(-x, byte);
        };
        for (uint32_t bits = 0x39000000u; bits < 0x42000000u; bits += 1u << 10) compare(float_from_bits(bits));
        for (uint32_t bits = 0; bits < 0x7F800000u; bits += (1u << 20) + 3u * (1u << 7) + 1)
            compare(float_from_bits(bits));
        for (const float x : {0.0f, 0x1p-149f, 6.0f, 7.0f, FLT_MAX, HUGE_VALF, std::nanf("")}) compare(x);
        for (const float value : {0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f})
            for (const float step : {0.5f, 1.0f, 2.0f}) {
                const float x = value - static_cast<float>(byte) * 0x1p-8f * step;
                if (x <= 0) continue;
                for (int apart = -3; apart <= 3; ++apart)
                    compare(float_from_bits(float_bits(x) + static_cast<uint32_t>(apart)));
            }
    }
    EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace nibble
