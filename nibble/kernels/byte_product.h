// Products in 8-bit integers: two to four times as fast as FP32, with an error of about half a percent. Passes over
// calibration text use them, because the sampling error of the text is larger. They never affect served tokens.
//
// A ByteMatrix is [rows, cols] in blocks of 192 columns: code = x / scale rounded to nearest even, scale = amax / 127.
//   a b^T [i, j]: acc = fma(t, scale_a * scale_b, acc) over blocks ascending from +0; t is the exact integer sum of a
//   block's products.
// Every entry computes the same bits.
#pragma once

#include "base/error.h"
#include "base/thread_pool.h"
#include "kernels/byte_product_args.h"
#include "kernels/matmul.h"
#include "kernels/panels.h"

#include <cstdint>
#include <span>
#include <string_view>

namespace nibble {

// Panels of 32 rows. Padding rows and columns are zero.
struct ByteMatrix {
    int64_t rows = 0, cols = 0;
    int64_t room = 0;              // blocks allocated per panel
    AlignedArray<uint32_t> words;  // [panels][room][48][32]: four signed codes, columns ascending
    AlignedArray<int32_t> sums;    // [panels][room][32]: sums of a block's codes
    AlignedArray<float> scales;    // [panels][room][32]

    ByteMatrix() = default;
    ByteMatrix(int64_t rows, int64_t cols) { resize(rows, cols); }
    // Sets the shape and reuses the memory if it is large enough. The contents are then undefined.
    void resize(int64_t rows, int64_t cols);
    int64_t panels() const { return (rows + byte_panel - 1) / byte_panel; }
    int64_t blocks() const { return (cols + byte_block - 1) / byte_block; }
};

struct ByteKernels {
    std::string_view name;  // "avx512", "avx2", "ref"
    bool (*supported)();
    void (*pack_rows)(const BytePanel& panel);
    void (*pack_columns)(const BytePanel& panel);
    void (*prepare)(const uint32_t* words, int64_t count, uint32_t* out);
    void (*tile)(const ByteTile& tile);
    void (*put)(const ByteOutput& out);
};

// Lists all kernels, the fastest first and `ref` last. select_byte_kernels() returns the first that this CPU supports,
// or the one named `force`; an unknown or unsupported name is an error.
std::span<const ByteKernels> byte_kernels();
Result<const ByteKernels*> select_byte_kernels(std::string_view force = {});

// Convert to a ByteMatrix and set its shape: x [rows, cols] with `stride` floats per row; its transpose [cols, rows]; a
// packed weight. NaN and infinities give blocks with a scale that is not finite and products that are NaN.
void byte_rows(const ByteKernels& k, const float* x, int64_t rows, int64_t cols, int64_t stride, ThreadPool& pool,
               ByteMatrix& m);
void byte_columns(const ByteKernels& k, const float* x, int64_t rows, int64_t cols, int64_t stride, ThreadPool& pool,
                  ByteMatrix& m);
void byte_weight(const ByteKernels& k, const PackedMatrix& weight, ThreadPool& pool, ByteMatrix& m);

// Writes the columns of x [rows, m.rows], row t multiplied by factor[t] (null: 1), as columns [at, at + rows) of `m`.
// `at` is a multiple of 192 and at least m.cols; m.cols becomes at + rows. Returns whether all values were finite.
bool append_byte_columns(const ByteKernels& k, const float* x, int64_t rows, int64_t stride, const float* factor,
                         ThreadPool& pool, ByteMatrix& m, int64_t at);

// out [a.rows, b.rows] = a b^T. Precondition: a.cols == b.cols.
void byte_product(const ByteKernels& k, const ByteMatrix& a, const ByteMatrix& b, const MatmulOutput& out,
                  ThreadPool& pool);
// sums [rows, rows] += a a^T, upper triangle only.
void add_byte_gram(const ByteKernels& k, const ByteMatrix& a, double* sums, ThreadPool& pool);

}  // namespace nibble
