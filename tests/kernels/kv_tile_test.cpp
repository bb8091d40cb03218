// The layout of the paged KV cache: every element has its own position, and a lane's 16-byte loads contain the elements
// that kv_tile.h describes.
#include "kernels/kv_tile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace nibble::cuda {
namespace {

class KvTile : public testing::TestWithParam<KvType> {};

constexpr KvDims dims{192, 128};

TEST_P(KvTile, EveryElementHasItsOwnPlace) {
    const KvType type = GetParam();
    std::set<int> seen;
    for (int t = 0; t < kv_tile_tokens; ++t)
        for (int d = 0; d < dims.k + dims.v; ++d) {
            const int at = d < dims.k ? k_offset(type, t, d) : k_tile_bytes(type, dims) + v_offset(type, t, d - dims.k);
            EXPECT_EQ(at % kv_element_bytes(type), 0);
            EXPECT_LT(at, kv_tile_bytes(type, dims));
            EXPECT_TRUE(seen.insert(at).second) << "token " << t << " dimension " << d;
        }
    EXPECT_EQ(static_cast<int>(seen.size()) * kv_element_bytes(type), kv_tile_bytes(type, dims));
}

TEST_P(KvTile, LoadsOfALaneHoldOneRowOfKeysAndFourTokensOfValues) {
    const KvType type = GetParam();
    const int each = 16 / kv_element_bytes(type);  // elements of a load
    for (int lane = 0; lane < 32; ++lane) {
        const int g = lane / 4, c = lane % 4;
        for (int h = 0; h < 2; ++h) {  // rows g and g + 8
            const int token = g / 2 * 4 + g % 2 + 2 * h;
            EXPECT_EQ(k_row(token), g + 8 * h);
            EXPECT_EQ(k_token(g + 8 * h), token);
            for (int panel = 0; panel < dims.k / (4 * each); ++panel)
                for (int i = 0; i < each; ++i)
                    EXPECT_EQ(k_offset(type, token, (4 * panel + c) * each + i),
                              panel * 1024 + (g + 8 * h) * 64 + 16 * c + i * kv_element_bytes(type));
        }
        for (int v = 0; v < dims.v / 16; ++v)
            for (int e = 0; e < 2; ++e)
                for (int i = 0; i < 4; ++i) {
                    const int at = v_offset(type, 4 * c + i, 16 * v + 2 * g + e);
                    const int load = type == KvType::bf16 ? v : v / 2, word = type == KvType::bf16 ? 0 : v % 2 * 2;
                    EXPECT_EQ(at, load * 512 + lane * 16 + word * 4 + (e * 4 + i) * kv_element_bytes(type));
                }
    }
}

TEST(KvDims, HeadsGoIntoTheSmallestThatHoldThem) {
    for (int k = 8; k <= 256; k += 8)
        for (int v = 8; v <= 256; v += 8) {
            const KvDims d = padded_dims(k, v);
            EXPECT_GE(d.k, k);
            EXPECT_GE(d.v, v);
            EXPECT_TRUE(std::ranges::count(kv_dims, d) == 1);
            for (const KvDims& other : kv_dims)
                if (other.k >= k && other.v >= v) {
                    EXPECT_LE(d.k + d.v, other.k + other.v);
                }
        }
    EXPECT_EQ(padded_dims(520, 8).k, 0);
    EXPECT_EQ(padded_dims(8, 520).k, 0);
}

INSTANTIATE_TEST_SUITE_P(Types, KvTile, testing::Values(KvType::bf16, KvType::e4m3),
                         [](const auto& info) { return info.param == KvType::bf16 ? "bf16" : "e4m3"; });

}  // namespace
}  // namespace nibble::cuda
