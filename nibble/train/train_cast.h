// Operands of products in training, rounded as TransformerEngine 2.20 rounds them (the FP32 order of every scale is its
// own) and held as numbers that FP32 holds exactly: value(code) * block scale. Scales of rows or tensors multiply the
// finished sum (the formulas: formats/training.h). So a product of such operands is the one a GPU with these formats
// computes, but for the order of its FP32 sum.
//
// A matrix is quantized along its rows: [outer, reduction]. The copy for a product that sums over tokens is that of the
// transposed matrix. Sources are read as BF16: they are rounded to it first.
#pragma once

#include "base/thread_pool.h"
#include "formats/training.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace nibble {

struct CastOperand {
    int64_t rows = 0, cols = 0;        // cols: the reduction, padded with zeros to whole blocks
    std::vector<float> values;         // [rows, cols]
    std::vector<float> scale;          // one, or one of each row
    float divisor = 1;                 // the sum is multiplied with scale_a * scale_b * fl(1 / (divisor_a * divisor_b))
    std::vector<float> block_scales;   // fp8_block: [rows, cols / 128], values are codes; else empty
    std::vector<uint8_t> scale_codes;  // nvfp4, mxfp8: [rows, cols / block], E4M3 or E8M0, in `values` already
    float amax = 0;                    // of the rotated source
    int64_t zero_blocks = 0, saturated = 0;  // nvfp4: blocks whose scale is 0 though they are not; codes beyond 6
};

// x [rows, cols], `stride` floats from row to row. `given`: of fp8 multiplies instead of 448 / amax (delayed); of
// CastRule::stored the input_scale, without which values stay BF16. elsewhere: the largest magnitude of the tensor's
// rows that are not here.
CastOperand cast_rows(const float* x, int64_t rows, int64_t cols, int64_t stride, const CastRule& rule,
                      const CastRandom& random, std::optional<float> given, ThreadPool& pool, float elsewhere = 0);
// The transpose of an operand of a matrix with `cols` columns, without the padding; its scales are squares or the
// tensor's.
CastOperand transposed_cast(const CastOperand& operand, int64_t cols, ThreadPool& pool);

}  // namespace nibble
