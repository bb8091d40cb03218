#include "base/philox.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

namespace nibble {
namespace {

std::array<uint32_t, 4> words(PhiloxBlock b) { return {b.word[0], b.word[1], b.word[2], b.word[3]}; }

// kat_vectors of Random123: counter, key, result of philox4x32 with 10 rounds.
TEST(Philox, KnownAnswersOfTheReferenceLibrary) {
    const uint32_t ones = 0xFFFFFFFFu;
    EXPECT_EQ(words(philox4x32({{0, 0, 0, 0}}, 0, 0)),
              (std::array<uint32_t, 4>{0x6627E8D5u, 0xE169C58Du, 0xBC57AC4Cu, 0x9B00DBD8u}));
    EXPECT_EQ(words(philox4x32({{ones, ones, ones, ones}}, ones, ones)),
              (std::array<uint32_t, 4>{0x408F276Du, 0x41C83B0Eu, 0xA20BC7C6u, 0x6D5451FDu}));
    EXPECT_EQ(words(philox4x32({{0x243F6A88u, 0x85A308D3u, 0x13198A2Eu, 0x03707344u}}, 0xA4093822u, 0x299F31D0u)),
              (std::array<uint32_t, 4>{0xD16CFE09u, 0x94FDCCEBu, 0x5001E420u, 0x24126EA1u}));
}

TEST(Philox, RunsAtCompileTime) {
    static_assert(philox4x32({{0, 0, 0, 0}}, 0, 0).word[0] == 0x6627E8D5u);
    static_assert(PhiloxStream{}.bits16(0) == 0xE8D5u && PhiloxStream{}.bits16(1) == 0x6627u);
}

TEST(Philox, SeedRoleAndIndexAllMatter) {
    const PhiloxStream a{1, 2}, b{2, 2}, c{1, 3};
    EXPECT_NE(words(a.block(5)), words(b.block(5)));
    EXPECT_NE(words(a.block(5)), words(c.block(5)));
    EXPECT_NE(words(a.block(5)), words(a.block(6)));
    EXPECT_NE(words(a.block(5)), words(a.block(5 + (uint64_t{1} << 32))));
}

TEST(Philox, Bits16CutsABlockIntoEightElements) {
    const PhiloxStream stream{7, 9};
    for (uint64_t i = 0; i < 64; ++i) {
        const PhiloxBlock block = stream.block(i / 8);
        EXPECT_EQ(stream.bits16(i), block.word[i % 8 / 2] >> (i % 2 ? 16 : 0) & 0xFFFFu);
    }
}

TEST(Philox, Bits16AreUniform) {
    const PhiloxStream stream{42, 0};
    std::array<int, 256> high{}, low{};
    constexpr int draws = 1 << 18;
    for (int i = 0; i < draws; ++i) {
        const uint32_t b = stream.bits16(static_cast<uint64_t>(i));
        ++high[b >> 8];
        ++low[b & 255];
    }
    for (const auto& counts : {high, low}) {  // chi-squared, 255 degrees of freedom: mean 255, deviation 22.6
        double chi = 0;
        for (int n : counts) chi += (n - draws / 256.0) * (n - draws / 256.0) / (draws / 256.0);
        EXPECT_LT(chi, 255 + 6 * 22.6);
        EXPECT_GT(chi, 255 - 6 * 22.6);
    }
}

}  // namespace
}  // namespace nibble
