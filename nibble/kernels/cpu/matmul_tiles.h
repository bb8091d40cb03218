// Functions of the instruction-set files for the product: tiles of R input rows by one panel of 32 outputs (or two
// panels) over a run of k. Plain data only: this header must not bring inline functions into those files.
//
// Weights are words (kernels/panels.h) or a strip, words of F32: [k][32] floats. E4M3 values decoded from words are too
// small by 2^-8, so their inputs are scaled by 2^8; strips hold exact values.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nibble::cpu {

struct TileRun {
    const std::byte* words;      // first panel, first k of the run
    int64_t words_panel;         // bytes per panel
    const std::byte* words_end;  // end of the first panel; beyond it, prefetches go words_skip bytes further
    int64_t words_skip;
    const float* x;  // [R][k], x_row floats per row
    int64_t x_row;
    const float* c;   // factors of blocks, [blocks][32]
    int64_t c_step;   // 32; 0 if one row of factors applies to all blocks
    int64_t c_panel;  // floats per panel
    const float* g;   // factors of the inputs [R][blocks], or null
    int64_t g_row;
    int64_t k;      // whole words
    int64_t block;  // k per block
    bool first;     // sets acc instead of adding to it
    float* acc;     // [panels][R][32]
};
using Tile = void (*)(const TileRun&);

// nvfp4 weights and inputs: the exact sum of products of doubled codes per block of 16.
struct IntegerRun {
    const uint32_t* w;      // strip [k / 4][32]: bytes 12 + doubled code of k 0 2 4 6 | 1 3 5 7 of every eight
    const uint32_t* x;      // [k / 4][R]: doubled codes, signed, in the same order
    const int32_t* offset;  // [blocks][R]: -12 * sum of the block's doubled codes
    const float* sx;        // [blocks][R]: a quarter of the input's block scale
    const float* c;         // [blocks][32]
    int64_t blocks;
    bool first;  // as in TileRun
    float* acc;  // [R][32]
};
using IntegerTile = void (*)(const IntegerRun&);

// y = acc * (input_scale * scale) + bias, rounded, for `rows` rows of 32 outputs.
struct FinishRun {
    const float* acc;           // [rows][32]
    const float* input_scales;  // [rows]
    const float* scales;        // [32]
    const float* bias;          // [32], or null
    bool bf16;
    float* y;
    int64_t y_stride;
    int64_t rows;
};

// y = activation(gate) * other, both finished as above.
struct FinishGated {
    FinishRun gate, other;  // other.y is the destination
    int activation;         // Activation
};

inline constexpr int most_tile_rows = 7, most_word_rows = 8, most_integer_rows = 8;

struct MatmulTiles {
    int strip_rows, word_rows, integer_rows;  // largest R of each kind of tile
    Tile strip[most_tile_rows + 1];           // [R], F32 words
    Tile words[5][most_word_rows + 1];        // [WeightCode][R]
    Tile pair[5];                             // [WeightCode]: one row of inputs, two panels; may be null
    IntegerTile integer[most_integer_rows + 1];

    void (*unpack[5])(const std::byte* words, int64_t count, float* strip);          // [WeightCode]
    void (*unpack_integer)(const std::byte* words, int64_t count, uint32_t* strip);  // E2M1 words, eight k each
    void (*block_factors[2])(const uint8_t* scales, int64_t blocks, float* c);       // [is E8M0]: packed scales
    // out[k][rows] = x[r * stride + k] for k < count.
    void (*interleave)(const uint32_t* x, int64_t stride, int rows, int64_t count, uint32_t* out);
    void (*finish)(const FinishRun& run);
    void (*finish_gated)(const FinishGated& run);
    // Converts E2M1 codes of one row in canonical order to words and offsets of IntegerRun with R = 1.
    void (*integer_row)(const uint8_t* codes, int64_t blocks, uint32_t* words, int32_t* offset);
};

extern const MatmulTiles matmul_avx2, matmul_avx512;

}  // namespace nibble::cpu
