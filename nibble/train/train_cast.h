// Rounds operands of training products like TransformerEngine 2.20 (including its FP32 order of operations for every
// scale). Rounded values are stored as FP32 numbers that are exact: value(code) * block scale. Scales of rows or
// tensors multiply the finished sum (formulas: formats/training.h). A product of such operands therefore equals the
// product on a GPU with these formats, except for the order of the FP32 sum.
//
// A matrix is quantized along its rows: [outer, reduction]. For a product that sums over tokens the transposed matrix
// is quantized. Sources are first rounded to BF16.
#pragma once

#include "base/thread_pool.h"
#include "formats/training.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace nibble {

struct CastOperand {
    int64_t rows = 0, cols = 0;       // cols: the reduction, padded with zeros to whole blocks
    std::vector<float> values;        // [rows, cols]
    std::vector<float> scale;         // one for the tensor, or one per row
    float divisor = 1;                // the sum is multiplied by scale_a * scale_b * fl(1 / (divisor_a * divisor_b))
    std::vector<float> block_scales;  // fp8_block: [rows, cols / 128], and values are codes; otherwise empty
    // nvfp4, mxfp8: [rows, cols / block] in E4M3 or E8M0; `values` already include them
    std::vector<uint8_t> scale_codes;
    float amax = 0;  // largest magnitude of the source after rotation
    // nvfp4: nonzero blocks whose scale is 0; elements beyond the largest code, 6
    int64_t zero_blocks = 0, saturated = 0;
};

// Rounds x [rows, cols], `stride` floats from row to row. given: for delayed fp8, used instead of 448 / amax; for
// CastRule::stored, the input_scale, without which values stay BF16. elsewhere: the largest magnitude of the tensor's
// rows that are not in x.
CastOperand cast_rows(const float* x, int64_t rows, int64_t cols, int64_t stride, const CastRule& rule,
                      const CastRandom& random, std::optional<float> given, ThreadPool& pool, float elsewhere = 0);
// Returns the transpose of an operand of a matrix with `cols` columns, without padding. Its scales must be per square
// or per tensor.
CastOperand transposed_cast(const CastOperand& operand, int64_t cols, ThreadPool& pool);

}  // namespace nibble
