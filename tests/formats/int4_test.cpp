#include "formats/int4.h"

#include <gtest/gtest.h>

#include <cmath>

namespace nibble {
namespace {

TEST(Int4, CodesAreTheIntegersPlusEight) {
    for (int code = 0; code < 16; ++code) EXPECT_EQ(int4_to_float(static_cast<uint8_t>(code)), float(code - 8));
}

TEST(Int4, TheLargestPositiveWeightIsSevenAndTheLargestNegativeMinusEight) {
    const float scale = int4_scale(3.0f);
    EXPECT_EQ(scale, 0.400390625f);  // BF16 of 0.4
    EXPECT_EQ(int4_code(3.0f, scale, DType::bf16), 15);
    // -3 / 0.4004 = -7.493, in BF16 -7.5, a tie
    EXPECT_EQ(int4_code(-3.0f, scale, DType::bf16), 0);
    EXPECT_EQ(int4_code(-3.0f, scale, DType::f32), 1);
    EXPECT_EQ(int4_code(-3.0f, 0.375f, DType::bf16), 0);
    EXPECT_EQ(int4_code(300.0f, scale, DType::bf16), 15);
    EXPECT_EQ(int4_code(-300.0f, scale, DType::bf16), 0);
}

TEST(Int4, AGroupOfZerosHasTheEpsilonOfBf16) {
    EXPECT_EQ(int4_scale(0.0f), 0.0078125f);
    EXPECT_EQ(int4_code(0.0f, int4_scale(0.0f), DType::bf16), 8);
    EXPECT_EQ(int4_scale(1e-42f), 0.0078125f) << "rounds to zero in BF16";
}

// Compares every BF16 quotient with rounding to even in double arithmetic.
TEST(Int4, QuotientsRoundToBf16AndThenToEven) {
    for (uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
        const float w = bf16_to_float(static_cast<uint16_t>(pattern));
        if (!std::isfinite(w)) continue;
        for (const float scale : {1.0f, 0.75f, 0.0078125f}) {
            const double q = double(bf16_to_float(bf16_from_float(w / scale)));
            const double want = std::nearbyint(std::fmin(std::fmax(q, -8.0), 7.0));
            ASSERT_EQ(int4_to_float(int4_code(w, scale, DType::bf16)), want) << w << " / " << scale;
            const double exact = std::nearbyint(std::fmin(std::fmax(double(w / scale), -8.0), 7.0));
            ASSERT_EQ(int4_to_float(int4_code(w, scale, DType::f32)), exact) << w << " / " << scale;
        }
    }
}

}  // namespace
}  // namespace nibble
