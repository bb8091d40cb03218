// The codecs against an independent definition: values computed with ldexp, rounding by exhaustive search for the
// nearest value in double precision, over all codes and all 65,536 BF16 inputs.
#include "formats/minifloat.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

using namespace nibble;

namespace {

// Textbook value of a code of a format with the given fields, all exponents ordinary.
double plain_value(uint32_t code, int mantissa_bits, int bias) {
    const int mantissa = int(code & ((1u << mantissa_bits) - 1)), exponent = int(code >> mantissa_bits);
    return exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                         : std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

// Index of the value nearest to a; ties to the even code. `values` ascending.
uint32_t nearest_even(const std::vector<double>& values, double a) {
    uint32_t best = 0;
    for (uint32_t c = 1; c < values.size(); ++c) {
        const double old = std::fabs(a - values[best]), now = std::fabs(a - values[c]);
        if (now < old || (now == old && c % 2 == 0)) best = c;
    }
    return best;
}

void check_rounding(int mantissa_bits, int bias, uint32_t codes, const std::function<uint32_t(float)>& encode) {
    std::vector<double> values;
    for (uint32_t c = 0; c < codes; ++c) values.push_back(plain_value(c, mantissa_bits, bias));
    const double largest = values.back(), half_step = (values.back() - values[codes - 2]) / 2;
    int checked = 0;
    for (uint32_t i = 0; i < 0x8000; ++i) {
        const float x = bf16_to_float(static_cast<uint16_t>(i));
        if (!(x <= largest + half_step) || (x == largest + half_step && codes % 2 == 0))
            continue;  // overflow: own tests
        ASSERT_EQ(encode(x), nearest_even(values, x)) << x;
        ++checked;
    }
    EXPECT_GT(checked, 10000);
    // Ties and their neighbours in FP32, finer than BF16 can express.
    for (uint32_t c = 0; c + 1 < codes; ++c) {
        const float tie = static_cast<float>((values[c] + values[c + 1]) / 2);
        for (float x : {tie, std::nextafterf(tie, 0), std::nextafterf(tie, 1e30f)})
            ASSERT_EQ(encode(x), nearest_even(values, x)) << x;
    }
}

}  // namespace

TEST(E4M3, EveryCodeHasItsTextbookValue) {
    for (uint32_t c = 0; c < 256; ++c) {
        const float v = e4m3_to_float(static_cast<uint8_t>(c));
        if ((c & 0x7F) == 0x7F) {
            EXPECT_TRUE(std::isnan(v));
            continue;
        }
        EXPECT_EQ(v, (c & 0x80 ? -1 : 1) * plain_value(c & 0x7F, 3, 7));
        EXPECT_EQ(std::signbit(v), (c & 0x80) != 0);
    }
}

TEST(E4M3, RoundsToNearestEven) {
    check_rounding(3, 7, 127, [](float x) { return e4m3_from_float(x); });
}

TEST(E4M3, OverflowIsNanUnlessSaturating) {
    EXPECT_EQ(e4m3_from_float(464.0f), 0x7E);  // the tie goes to 448
    EXPECT_EQ(e4m3_from_float(std::nextafterf(464.0f, 1e9f)), 0x7F);
    EXPECT_EQ(e4m3_from_float(-INFINITY), 0xFF);
    EXPECT_EQ(e4m3_from_float_saturating(1e30f), 0x7E);
    EXPECT_EQ(e4m3_from_float_saturating(-INFINITY), 0xFE);
    EXPECT_EQ(e4m3_from_float_saturating(NAN), 0x7F);
    EXPECT_EQ(e4m3_from_float(-0.0f), 0x80);
}

TEST(E4M3, SmallestSubnormalTiesGoToEven) {
    EXPECT_EQ(e4m3_from_float(0x1p-10f), 0x00);
    EXPECT_EQ(e4m3_from_float(0x1.004p-10f), 0x01);
    EXPECT_EQ(e4m3_from_float(0x1.8p-9f), 0x02);
    EXPECT_EQ(e4m3_from_float(0x1.4p-8f), 0x02);
}

TEST(E5M2, RoundsToNearestEvenAndOverflowsToInfinity) {
    check_rounding(2, 15, 124, [](float x) { return e5m2_from_float(x); });
    EXPECT_EQ(e5m2_from_float(61440.0f), 0x7C);
    EXPECT_EQ(e5m2_from_float(std::nextafterf(61440.0f, 0)), 0x7B);
    EXPECT_EQ(e5m2_from_float(-INFINITY), 0xFC);
    EXPECT_EQ(e5m2_from_float(NAN) & 0x7F, 0x7E);
    for (uint32_t c = 0; c < 0x7C; ++c) EXPECT_EQ(e5m2_to_float(uint8_t(c)), plain_value(c, 2, 15));
}

TEST(E2M1, CodesHaveTheirValues) {
    const float values[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    for (uint8_t c = 0; c < 8; ++c) {
        EXPECT_EQ(e2m1_to_float(c), values[c]);
        EXPECT_EQ(e2m1_to_float(c | 8), -values[c]);
    }
}

TEST(E2M1, RoundsToNearestEvenAndSaturates) {
    check_rounding(1, 1, 8, [](float x) { return x > 6 ? 7u : e2m1_magnitude(x); });
    for (float x : {5.01f, 6.0f, 100.0f, INFINITY}) EXPECT_EQ(e2m1_magnitude(x), 7);
    EXPECT_EQ(e2m1_magnitude(NAN), 7);
}

TEST(E2M1, TheExportCastOfModelOptimizer) {  // results of Model Optimizer on CPU and GPU
    const float in[] = {-0.0f, -0.1f, .25f, -.25f,    .75f,      1.25f, 1.75f, 2.5f,   3.5f,
                        5,     6,     100,  INFINITY, -INFINITY, NAN,   .26f,  -5.01f, -6};
    const int out[] = {0, 8, 0, 8, 2, 2, 4, 4, 6, 6, 7, 7, 7, 15, 7, 1, 15, 15};
    for (size_t i = 0; i < std::size(in); ++i) EXPECT_EQ(e2m1_from_float(in[i]), out[i]) << in[i];
}

TEST(E2M1, TheMxCastRoundsTiesDownAndGivesZeroASign) {
    const float in[] = {0.0f, -0.0f, .25f, .75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f, -5.0f, 5.01f, .2f, -.2f};
    const int out[] = {8, 8, 0, 1, 2, 3, 4, 5, 6, 14, 7, 0, 8};
    for (size_t i = 0; i < std::size(in); ++i) EXPECT_EQ(e2m1_from_float_ties_down(in[i]), out[i]) << in[i];
}

TEST(Bf16, RoundsToNearestEvenForEveryHighHalfAndTie) {
    for (uint32_t high = 0; high < 0x10000; ++high) {
        const float exact = bf16_to_float(uint16_t(high));
        if (std::isnan(exact)) {
            EXPECT_TRUE(std::isnan(round_to_bf16(exact)));
            continue;
        }
        ASSERT_EQ(bf16_from_float(exact), high);
        if ((high & 0x7FFF) >= 0x7F7F) continue;
        const uint32_t tie = high << 16 | 0x8000u;
        ASSERT_EQ(bf16_from_float(float_from_bits(tie)), high + (high & 1));
        ASSERT_EQ(bf16_from_float(float_from_bits(tie - 1)), high);
        ASSERT_EQ(bf16_from_float(float_from_bits(tie + 1)), high + 1);
    }
    EXPECT_EQ(bf16_from_float(std::numeric_limits<float>::max()), 0x7F80);
}

TEST(Fp16, EveryCodeSurvivesARoundTripAndEqualsTheCompilersHalf) {
    for (uint32_t c = 0; c < 0x10000; ++c) {
        const float v = fp16_to_float(uint16_t(c));
        const _Float16 half = std::bit_cast<_Float16>(uint16_t(c));
        if (std::isnan(v)) {
            EXPECT_TRUE(std::isnan(static_cast<float>(half)));
            EXPECT_TRUE(std::isnan(fp16_to_float(fp16_from_float(v))));
            continue;
        }
        ASSERT_EQ(v, static_cast<float>(half));
        ASSERT_EQ(fp16_from_float(v), c);
    }
    for (uint32_t i = 0; i < 0xFFFFFF00u; i += 4093) {
        const float x = float_from_bits(i);
        if (std::isnan(x)) continue;
        ASSERT_EQ(fp16_from_float(x), std::bit_cast<uint16_t>(static_cast<_Float16>(x))) << x;
    }
}

TEST(E8M0, PowersOfTwoAndItsNan) {
    for (int c = 0; c < 255; ++c) EXPECT_EQ(e8m0_to_float(uint8_t(c)), std::ldexp(1.0, c - 127));
    EXPECT_TRUE(std::isnan(e8m0_to_float(255)));
    for (int c = 0; c < 255; ++c) EXPECT_EQ(e8m0_from_float(e8m0_to_float(uint8_t(c))), c);
    for (float bad : {0.0f, -1.0f, INFINITY, NAN, -0.0f}) EXPECT_EQ(e8m0_from_float(bad), 255);
    EXPECT_EQ(e8m0_from_float(1.5f), 128);
    EXPECT_EQ(e8m0_from_float(std::nextafterf(1.5f, 0)), 127);
}
