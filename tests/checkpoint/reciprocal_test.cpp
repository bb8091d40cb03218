#include "checkpoint/reciprocal.h"

#include <gtest/gtest.h>

#include <cmath>

namespace nibble {
namespace {

// Returns true if any float near 1/s has the reciprocal s; tries more floats than the function does.
bool has_divisor(float s) {
    const uint32_t near = float_bits(1.0f / s);
    for (uint32_t g = near - 8; g <= near + 8; ++g)
        if (1.0f / float_from_bits(g) == s) return true;
    return false;
}

TEST(Reciprocal, IsExactIfADivisorExistsAndOtherwiseOneStepOff) {
    int64_t inexact = 0;
    for (uint32_t mantissa = 0; mantissa < 1u << 23; ++mantissa) {
        const float s = float_from_bits(0x3A000000u | mantissa);  // 2^-11 to 2^-10, the range of NVFP4's scales
        const Divisor d = divisor_of(s);
        if (d.exact) {
            ASSERT_EQ(1.0f / d.value, s);
            continue;
        }
        ++inexact;
        ASSERT_FALSE(has_divisor(s));
        ASSERT_GE(mantissa, 0x3504F3u) << "below sqrt(2) a divisor always exists";
        const int64_t step = int64_t{float_bits(1.0f / d.value)} - int64_t{float_bits(s)};
        ASSERT_EQ(std::abs(step), 1);
    }
    EXPECT_GT(inexact, 0);
    RecordProperty("inexact_of_2_to_23", static_cast<int>(inexact));
}

TEST(Reciprocal, EveryBf16DivisorIsRestored) {
    for (uint32_t code = 0x0080; code < 0x7F00; ++code) {  // normal numbers with a normal reciprocal
        const float g = bf16_to_float(static_cast<uint16_t>(code));
        const float s = 1.0f / g;
        if (s < 1.17549435e-38f) continue;
        const Divisor d = divisor_of(s);
        ASSERT_TRUE(d.exact) << g;
        ASSERT_EQ(d.value, g);
    }
}

TEST(Reciprocal, AScaleWhoseReciprocalOverflowsHasNoDivisor) {
    EXPECT_EQ(divisor_of(1e-45f).value, 0.0f);
    EXPECT_FALSE(divisor_of(1e-45f).exact);
    EXPECT_GT(divisor_of(3e38f).value, 0.0f);
}

}  // namespace
}  // namespace nibble
