#include "formats/stochastic.h"

#include <gtest/gtest.h>

#include <cmath>

namespace nibble {
namespace {

constexpr float values[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};

TEST(Stochastic, ValuesOfTheGridNeverMove) {
    for (uint8_t code = 0; code < 8; ++code)
        for (uint32_t random : {0u, 1u, 32768u, 65535u})
            EXPECT_EQ(e2m1_magnitude_stochastic(values[code], random), code);
}

TEST(Stochastic, TheShareRoundedUpIsTheDistanceToTheValueBelow) {
    for (int code = 0; code < 7; ++code)
        for (int k = 1; k < 64; ++k) {
            const float t = static_cast<float>(k) / 64.0f, x = values[code] + (values[code + 1] - values[code]) * t;
            int up = 0;
            for (uint32_t random = 0; random < 65536; random += 64) {
                const int c = e2m1_magnitude_stochastic(x, random + random % 61);
                ASSERT_TRUE(c == code || c == code + 1) << x << " " << c;
                up += c == code + 1;
            }
            EXPECT_NEAR(up / 1024.0, t, 2.0 / 1024.0) << x;
        }
}

TEST(Stochastic, SaturatesAtSixAndTakesNaNThere) {
    for (float x : {6.0f, 6.1f, 1e30f, INFINITY, std::nanf("")}) EXPECT_EQ(e2m1_magnitude_stochastic(x, 0), 7);
}

TEST(Stochastic, SignIsThatOfTheQuotient) {
    EXPECT_EQ(nvfp4_code_stochastic(-1.0f, 1.0f, 0), 10);
    EXPECT_EQ(nvfp4_code_stochastic(-0.0f, 1.0f, 0), 0);
    EXPECT_EQ(nvfp4_code_stochastic(-0.01f, 1.0f, 65535), 8);
}

TEST(Hadamard, RowsAreTheSylvesterMatrixOverFour) {
    for (int k = 0; k < 16; ++k) {
        float w[16] = {};
        w[k] = 1.0f;
        hadamard16(w, 0);
        for (int i = 0; i < 16; ++i) EXPECT_EQ(w[i], __builtin_parity(static_cast<unsigned>(i & k)) ? -0.25f : 0.25f);
    }
}

TEST(Hadamard, TwiceIsTheIdentityAndSignsComeFirst) {
    float w[16], x[16];
    for (int i = 0; i < 16; ++i) w[i] = x[i] = static_cast<float>(i * i - 40);  // small integers: every sum is exact
    hadamard16(x, 0xB39Au);
    hadamard16(x, 0);
    for (int i = 0; i < 16; ++i) EXPECT_EQ(x[i], 0xB39Au >> i & 1 ? -w[i] : w[i]);
}

}  // namespace
}  // namespace nibble
