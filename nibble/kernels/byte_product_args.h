// Arguments of the functions in kernels/byte_product.h. Plain data, because instruction-set files include this header.
#pragma once

#include <cstdint>

namespace nibble {

// Scaling the sums takes a quarter of a tile's time with blocks of 64, and a ninth with 192.
inline constexpr int64_t byte_block = 192, byte_panel = 32, byte_words = byte_block / 4, byte_tile_rows = 8;

// One panel of a matrix. Read by rows, element (row, col) is x[row * stride + col]; by columns it is x[col * stride +
// row].
struct BytePanel {
    const float* x = nullptr;
    int64_t stride = 0;
    int64_t rows = 0, cols = 0;     // at most 32 rows
    const float* factor = nullptr;  // only by columns: [cols], factor of row x[col * stride ...]; or null
    uint32_t* words = nullptr;
    int32_t* sums = nullptr;
    float* scales = nullptr;
};

// 8 rows of a times 32 rows of b over some blocks, added to acc [8][32].
struct ByteTile {
    const uint32_t* a;      // [blocks][48][32], starting at the first of the 8 rows
    const int32_t* a_sums;  // [blocks][32]
    const float* a_scales;
    const uint32_t* b;  // [blocks][48][32], converted by `prepare`
    const float* b_scales;
    int64_t blocks;
    float* acc;
};

// Converts sums acc [rows][32] to `count` outputs per row: adds the bias, then rounds to BF16. With gates, finished the
// same way: y = activation(gate) * output, rounded.
struct ByteOutput {
    const float* acc = nullptr;
    const float* gate = nullptr;  // [rows][32], or null
    int activation = 0;           // Activation
    int64_t rows = 0, count = 0;
    const float* bias = nullptr;  // or null
    const float* gate_bias = nullptr;
    bool bf16 = false;
    float* y = nullptr;
    int64_t stride = 0;
};

}  // namespace nibble
