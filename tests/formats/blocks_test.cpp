#include "formats/format.h"
#include "formats/fp8.h"
#include "formats/mx.h"
#include "formats/nvfp4.h"
#include "formats/swizzle.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

using namespace nibble;

constexpr auto both = {Arithmetic::reciprocal, Arithmetic::true_division};

TEST(Arithmetic, TheProfilesDifferByAtMostOneUlpAndDoDiffer) {
    for (float c : {6.0f, 448.0f, 1536.0f, 2688.0f}) {
        int differ = 0;
        for (uint32_t i = 0; i < 100000; ++i) {
            const float x = float_from_bits(0x3C000000u + i * 641u);
            const int64_t a = float_bits(div_const(x, c, Arithmetic::reciprocal)),
                          b = float_bits(div_const(x, c, Arithmetic::true_division));
            ASSERT_LE(std::abs(a - b), 1);
            differ += a != b;
        }
        EXPECT_GT(differ, 15000);
        EXPECT_LT(differ, 65000);
    }
}

TEST(Nvfp4Scale, KnownTensorScales) {  // scales computed by Model Optimizer
    for (auto a : both) {
        EXPECT_FLOAT_EQ(nvfp4_tensor_scale(2.0f, 448, a), 7.4404762e-4f);
        EXPECT_FLOAT_EQ(nvfp4_tensor_scale(2.0f, 256, a), 1.3020833e-3f);
        EXPECT_EQ(nvfp4_tensor_scale(0.0f, 448, a), 1.0f);
    }
    EXPECT_EQ(nvfp4_tensor_scale(2688.0f, 448, Arithmetic::reciprocal), 1.0f);
}

TEST(Nvfp4Scale, ZeroBlocksHaveThreeEncodings) {
    for (auto a : both) {
        EXPECT_EQ(nvfp4_dynamic_scale(0, nvfp4_tensor_scale(1, 448, a)), 0x38);
        EXPECT_EQ(nvfp4_static_scale(0, 0.1f, 448, a), 0x7E);
        EXPECT_EQ(nvfp4_static_scale(0, 0, 448, a), 0x7E);
    }
    EXPECT_EQ(mxfp4_scale(0), 0);
    EXPECT_EQ(mxfp4_code(0, mx_inverse_scale(0)), 8);
}

TEST(Nvfp4Scale, IsAlwaysFiniteAndPositive) {
    for (auto a : both)
        for (float g : {1e-30f, 1e-10f, 0.1f, 1.0f, 1e6f, 1e30f})
            for (float block : {0.0f, 1e-38f, 1e-12f, 0.05f, 1.0f, 4e6f, 3e38f}) {
                const float s2 = nvfp4_tensor_scale(g, 448, a);
                for (uint8_t s : {nvfp4_dynamic_scale(block, s2), nvfp4_static_scale(block, g, 448, a),
                                  nvfp4_static_scale(block, g, 256, a)}) {
                    EXPECT_GE(s, 0x01);
                    EXPECT_LE(s, 0x7E);
                }
            }
    EXPECT_EQ(nvfp4_static_scale(8, 1, 448, Arithmetic::true_division), 0x7E);
    EXPECT_EQ(nvfp4_static_scale(1.5f, 1, 256, Arithmetic::true_division), e4m3_from_float(384));
}

TEST(Nvfp4Search, ABlockOnTheGridHasNoLoss) {
    float w[16];
    const float values[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    for (int i = 0; i < 16; ++i) w[i] = (i % 2 ? -1.0f : 1.0f) * values[i / 2] * 0.25f;
    EXPECT_EQ(nvfp4_fake_loss(w, 0.25f), 0.0f);
    EXPECT_GT(nvfp4_fake_loss(w, 0.3f), 0.0f);
    float sum = 0;
    for (float x : w) sum += x * x;
    EXPECT_EQ(nvfp4_fake_loss(w, 0.0f), sum);
}

TEST(Mx, ExponentIsTheSmallestThatFits) {
    for (uint32_t i = 1; i < 0x7F80; ++i) {
        const float a = bf16_to_float(uint16_t(i));
        for (bool fp8 : {false, true}) {
            const double limit = fp8 ? 448 : 6;
            const int e = (fp8 ? mxfp8_scale(a) : mxfp4_scale(a)) - 127;
            ASSERT_LE(double(a), limit * std::ldexp(1.0, e)) << a;
            if (e > -127) {
                ASSERT_GT(double(a), limit * std::ldexp(1.0, e - 1)) << a;
            }
        }
    }
    // MXFP4 inputs: a maximum from 1.75 * 2^n on counts as 2^(n + 1), and powers of two map to 4.
    for (uint32_t i = 0x80; i < 0x7F80; ++i) {
        const float a = bf16_to_float(uint16_t(i));
        const double quotient = double(a) * double(mx_inverse_scale(mxfp4_input_scale(a)));
        if (mxfp4_input_scale(a) > 0) {
            ASSERT_GE(quotient, 3.5) << a;
        }
        ASSERT_LT(quotient, 7.0) << a;
    }
    EXPECT_EQ(mxfp4_input_scale(4), 127);
    EXPECT_EQ(mxfp4_input_scale(6.96875f), 127);
    EXPECT_EQ(mxfp4_input_scale(7), 128);
    EXPECT_EQ(mxfp4_input_scale(0), 0);
    const std::pair<float, uint8_t> codes[] = {{0.0f, 0},  {-0.0f, 0}, {0.25f, 0}, {-0.25f, 8}, {0.75f, 2},
                                               {1.75f, 4}, {3.5f, 6},  {5.0f, 6},  {6.9f, 7},   {-6.9f, 15}};
    for (const auto& [x, code] : codes) EXPECT_EQ(mxfp4_input_code(x, 1), code) << x;
    EXPECT_EQ(mxfp8_scale(1), 119);
    EXPECT_EQ(mxfp8_scale(.5f), 118);
    EXPECT_EQ(mxfp8_scale(2), 120);
    EXPECT_EQ(mxfp8_scale(448), 127);
    for (int b = 0; b < 255; ++b) EXPECT_EQ(mx_inverse_scale(uint8_t(b)), std::ldexp(1.0, 127 - b));
}

TEST(Fp8, ScaleOfZeroIsOne) {
    for (auto a : both) EXPECT_EQ(fp8_scale(0, a), 1.0f);
    EXPECT_EQ(fp8_tensor_divisor(1.005f, Arithmetic::true_division, DType::bf16), 1.005f);
    EXPECT_EQ(fp8_tensor_divisor(1.005f, Arithmetic::reciprocal, DType::bf16), 1.0078125f);
}

TEST(Swizzle, IsAPermutationWithZeroPadding) {
    for (auto [rows, cols] : {std::pair{1, 1}, {128, 4}, {130, 5}, {32, 16}, {257, 36}}) {
        std::vector<uint8_t> in(size_t(rows) * cols), out(size_t(swizzled_scale_bytes(rows, cols)), 0xAA),
            back(in.size());
        for (size_t i = 0; i < in.size(); ++i) in[i] = uint8_t(1 + i % 251);
        std::set<int64_t> seen;
        for (int r = 0; r < rows; ++r)
            for (int c = 0; c < cols; ++c) EXPECT_TRUE(seen.insert(swizzled_scale_offset(r, c, cols)).second);
        EXPECT_LT(*seen.rbegin(), swizzled_scale_bytes(rows, cols));
        swizzle_scales(in.data(), rows, cols, out.data());
        for (int r = 0; r < rows; ++r)
            for (int c = 0; c < cols; ++c) back[size_t(r) * cols + c] = out[swizzled_scale_offset(r, c, cols)];
        EXPECT_EQ(in, back);
        size_t zeros = 0;
        for (uint8_t b : out) zeros += b == 0;
        EXPECT_EQ(zeros, out.size() - in.size());
    }
    EXPECT_EQ(swizzled_scale_offset(33, 2, 4), 16 + 4 + 2);
}

TEST(FormatTable, NamesRoundTripAndSizesAdd) {
    for (Format f : all_formats()) EXPECT_EQ(format_from_name(format_name(f)), f);
    EXPECT_FALSE(format_from_name("fp4").has_value());
    EXPECT_NEAR(bits_per_element(Format::nvfp4, 4096, 14336), 4.5, 1e-5);
    EXPECT_NEAR(bits_per_element(Format::mxfp4, 64, 64), 4.25, 1e-9);
    EXPECT_EQ(float_scale_count(Format::fp8_block128, 129, 300), 6);
    EXPECT_EQ(float_scale_count(Format::int4, 3, 256), 6);
    EXPECT_NEAR(bits_per_element(Format::int4, 64, 256), 4.125, 1e-9);
    EXPECT_FALSE(format_fits(Format::int4, 192));
    EXPECT_TRUE(format_fits(Format::int4, 256));
    EXPECT_FALSE(format_fits(Format::nvfp4, 24));
    EXPECT_TRUE(format_fits(Format::fp8_block128, 24));
}
