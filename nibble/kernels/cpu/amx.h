// The functions of matmul_amx.cpp for the order `tiles` of kernels/matmul.h. Plain data only, as in matmul_tiles.h.
//
// Inputs are tiles: BF16 [k / 32][16][32] for every 16 rows. Weights are pairs: 32 bits hold the BF16 of an even k and
// of the next, [k / 2][32 outputs]. BF16 words of panels are already pairs. Padding of K is zero.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nibble::cpu {

inline constexpr int64_t tile_rows = 16, tile_k = 32, tile_values = tile_rows * tile_k;
inline constexpr int64_t pairs_per_tile = tile_k / 2 * 32;  // per panel

// Words of a panel and factors of its blocks, as in TileRun. c_step 0: one factor for all blocks.
struct AmxWeights {
    const std::byte* words;
    int64_t k;  // remaining k, whole words
    const float* c;
    int64_t c_step, block;
};

struct AmxInputs {
    const uint16_t* tiles;
    int64_t apart;  // values between tiles of rows
};

struct AmxKernels {
    // Sets up the tile registers of this thread for tiles of `rows` rows. After release() the system no longer saves
    // them.
    void (*configure)(int rows);
    void (*release)();

    // Rounds one tile of rows x [rows][k] to BF16.
    void (*round)(const float* x, int64_t stride, int64_t rows, int64_t k, uint16_t* tiles);
    void (*pairs[5])(const AmxWeights& w, uint32_t* pairs);  // [WeightCode]; f32: null

    // acc [16 or 32][32] = (or +=) sums over `steps` tiles of k, for one or two tiles of rows.
    void (*one)(const AmxInputs& x, const uint32_t* pairs, int64_t steps, bool first, float* acc);
    void (*two)(const AmxInputs& x, const uint32_t* pairs, int64_t steps, bool first, float* acc);
    // pairs and one combined: decodes a step while it sums another. [WeightCode]
    void (*few[5])(const AmxInputs& x, const AmxWeights& w, bool first, float* acc);

    // total [rows][32] = (or +=) t * (g * c): c [32]; g of each row, g_row apart, or null.
    void (*add_block)(const float* t, int64_t rows, const float* c, const float* g, int64_t g_row, bool first,
                      float* total);
};

extern const AmxKernels amx_kernels;

}  // namespace nibble::cpu
