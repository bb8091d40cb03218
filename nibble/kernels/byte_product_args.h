// Arguments of kernels/byte_product.h. Plain data: instruction-set files include this header.
#pragma once

#include <cstdint>

namespace nibble {

// With blocks of 64 a quarter of a tile's time went into scaling its sums; of 192 a ninth.
inline constexpr int64_t byte_block = 192, byte_panel = 32, byte_words = byte_block / 4, byte_tile_rows = 8;

// One panel of a matrix that is read by rows or by columns: element (row, col) is x[row * stride + col], or
// x[col * stride + row].
struct BytePanel {
    const float* x = nullptr;
    int64_t stride = 0;
    int64_t rows = 0, cols = 0;     // rows at most 32
    const float* factor = nullptr;  // by columns only: [cols], multiplies the row x[col * stride ...]; or null
    uint32_t* words = nullptr;
    int32_t* sums = nullptr;
    float* scales = nullptr;
};

// 8 rows of a by 32 of b over some blocks; acc [8][32] is added to.
struct ByteTile {
    const uint32_t* a;      // [blocks][48][32], the first of the 8 rows
    const int32_t* a_sums;  // [blocks][32]
    const float* a_scales;
    const uint32_t* b;  // [blocks][48][32], as `prepare` left it
    const float* b_scales;
    int64_t blocks;
    float* acc;
};

// Sums acc [rows][32] become `count` outputs a row: + bias, then the nearest BF16. With gates, whose sums are finished
// the same way: y = activation(gate) * that, rounded.
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
