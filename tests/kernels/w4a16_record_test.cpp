// The weight layout of the Hopper matrix products, on the CPU: every code, every block scale, every place.
#include "kernels/w4a16_record.h"

#include <gtest/gtest.h>

#include <bit>
#include <random>

namespace nibble::w4a16 {
namespace {

// Returns one half of a register as a double.
double half_value(uint32_t pair, int half) { return bf16_to_float(static_cast<uint16_t>(pair >> (16 * half))); }

TEST(W4a16Record, EveryCodeAtEveryPlaceOfAGroupComesBack) {
    for (int place = 0; place < 16; ++place)
        for (uint64_t code = 0; code < 16; ++code)
            for (const uint64_t others : {uint64_t{0}, ~uint64_t{0}, uint64_t{0x0123456789ABCDEF}}) {
                const uint64_t codes = (others & ~(uint64_t{15} << (4 * place))) | code << (4 * place);
                EXPECT_EQ(unpack_group(pack_group(codes)), codes);
            }
}

TEST(W4a16Record, RandomGroupsComeBackAndUseEveryBit) {
    std::mt19937_64 random(1);
    uint32_t ones[2] = {};
    for (int i = 0; i < 10000; ++i) {
        const uint64_t codes = random();
        const GroupWords words = pack_group(codes);
        ASSERT_EQ(unpack_group(words), codes);
        ones[0] |= words.w0;
        ones[1] |= words.w1;
    }
    EXPECT_EQ(ones[0], ~0u);
    EXPECT_EQ(ones[1], ~0u);
    for (int bit = 0; bit < 64; ++bit)  // a permutation of bits: each bit in gives one bit out
        EXPECT_EQ(std::popcount(pack_group(uint64_t{1} << bit).w0) + std::popcount(pack_group(uint64_t{1} << bit).w1),
                  1);
}

TEST(W4a16Record, RegistersHoldTheColumnsInOrderAsBf16) {
    for (const uint64_t codes : {uint64_t{0xFEDCBA9876543210}, uint64_t{0x0F1E2D3C4B5A6978}})
        for (int t = 0; t < 8; ++t)
            for (int half = 0; half < 2; ++half) {
                const auto code = static_cast<uint8_t>(codes >> (8 * t + 4 * half) & 15);
                EXPECT_EQ(half_value(register_of(pack_group(codes), t), half), e2m1_to_float(code) * 0x1p-126);
            }
}

TEST(W4a16Record, EveryBlockScaleComesBackAndDecodesExactly) {
    for (int s = 1; s <= 126; ++s) {
        const auto scale = static_cast<uint8_t>(s);
        ASSERT_TRUE(packable_scale(scale));
        const uint8_t byte = pack_scale(scale);
        EXPECT_EQ(unpack_scale(byte), scale);
        for (int half = 0; half < 2; ++half)
            EXPECT_EQ(half_value(scale_pair(byte * 0x01010101u), half), e4m3_to_float(scale) * 0x1p119);
    }
    for (const int s : {0, 127, 128, 129, 254, 255}) EXPECT_FALSE(packable_scale(static_cast<uint8_t>(s)));
}

TEST(W4a16Record, EveryMxScaleComesBackAndDecodesExactly) {
    for (int s = 9; s <= 135; ++s) {
        const auto scale = static_cast<uint8_t>(s);
        ASSERT_TRUE(packable_mx_scale(scale));
        const uint8_t byte = pack_mx_scale(scale);
        EXPECT_EQ(unpack_mx_scale(byte), scale);
        for (int half = 0; half < 2; ++half)
            EXPECT_EQ(half_value(mx_scale_pair(byte * 0x01010101u), half), double{e8m0_to_float(scale)} * 0x1p119);
        for (int code = 0; code < 16; ++code) {
            const double product = double{e2m1_to_float(static_cast<uint8_t>(code))} * e8m0_to_float(scale) / unscale;
            EXPECT_EQ(round_to_bf16(static_cast<float>(product)), product);
        }
    }
    for (const int s : {0, 8, 136, 255}) EXPECT_FALSE(packable_mx_scale(static_cast<uint8_t>(s)));
}

TEST(W4a16Record, CodeTimesScaleIsExactInBf16) {
    for (int s = 1; s <= 126; ++s)
        for (int code = 0; code < 16; ++code) {
            const double product =
                double{e2m1_to_float(static_cast<uint8_t>(code))} * e4m3_to_float(static_cast<uint8_t>(s)) / unscale;
            EXPECT_EQ(round_to_bf16(static_cast<float>(product)), product);
        }
}

}  // namespace
}  // namespace nibble::w4a16
