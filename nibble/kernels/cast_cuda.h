// Operands of training's products on a GPU, rounded as in formats/training.h: the codes and scales of
// train/train_cast.h and train/train_eden.h on the host, bit for bit.
//
// The results are values, code * block scale, which are exact in BF16, in the layout of the source. Any BF16 product
// then computes what a GPU with native support for the format would. Scales of rows or of the tensor multiply the
// finished sum.
//
// Pointers are device pointers, 16-byte aligned (vectors of floats: 4). Functions queue work and return at once; they
// neither allocate nor wait.
#pragma once

#include "formats/training.h"
#include "kernels/cast_args.h"
#include "tensor/device.h"

namespace nibble::cuda {

// x [rows, cols] BF16, columns a multiple of 8. `down`: the reduction runs over rows, else over columns.
struct CastSource {
    const std::byte* x = nullptr;
    int64_t rows = 0, cols = 0;
    int64_t stride = 0;  // elements per row, a multiple of 8; 0: cols
    bool down = false;
    // x is read as x * fl(scale * factor), the values of an operand. null: unchanged. scale_by_row: one scale per row.
    const float* scale = nullptr;
    bool scale_by_row = false;
    float factor = 1.0f;
    // The largest magnitude of the input, ignoring NaN, if already known: casts that need it and do not rotate use it,
    // and CastValues::amax is not written. null: unknown.
    const float* amax = nullptr;

    int64_t reduction() const { return down ? rows : cols; }
    int64_t outer() const { return down ? cols : rows; }
};

struct CastValues {
    std::byte* values = nullptr;  // BF16; down: [padded rows, cols], else [rows, padded cols]; must not be the source
    float* scale = nullptr;       // CastOperand::scale: one number, or one per row with row_scaled
    float* amax = nullptr;        // largest magnitude of the (rotated) source; not written for row_scaled and mxfp8
    float* seen = nullptr;        // fp8: raised to amax
    CastFactor factor;            // not for mxfp8 and squares; for columns one number
};
// Formats bf16, fp8, fp8_e5m2, mxfp8 and nvfp4. `given`: fp8's multiplying scale in device memory (delayed scaling).
// square: not `down`, columns a multiple of 16.
Status cast_values(const CastSource& from, const CastRule& rule, const CastRandom& random, const float* given,
                   const CastValues& to, const Stream& stream);
// Both directions of one source in one pass for scales and one for values: `rows` equals cast_values() by one rule,
// `columns` equals cast_values() of the source with `down` by the other.
struct CastBoth {
    std::byte* rows = nullptr;     // [rows, padded cols]
    std::byte* columns = nullptr;  // [padded rows, cols]
    float* scales = nullptr;       // two numbers: rows, columns
    float* amax = nullptr;         // two numbers; neither scales nor amax are written for mxfp8
    CastFactor factor;             // factor of the rows
};
// Returns true if a kernel exists for this pair: formats mxfp8 and nvfp4, rows not rotated, one tensor scale, blocks in
// one direction without a search.
bool casts_both(const CastRule& rows, const CastRule& columns);
Status cast_both(const CastSource& from, const CastRule& rows, const CastRandom& rows_random, const CastRule& columns,
                 const CastRandom& columns_random, const CastBoth& to, const Stream& stream);
// Formats fp8_block and fp8_block2. Writes codes as BF16 in [outer, padded reduction] for both directions (`down`:
// transposed), and to.scale [outer, padded / 128], the factors of each block's codes; square: [ceil(outer / 128),
// padded / 128]. The source has no scale.
Status cast_blocks(const CastSource& from, const CastRule& rule, const CastValues& to, const Stream& stream);
// 8-bit codes for the FP8 tensor cores: formats fp8, fp8_e5m2, fp8_block and fp8_block2. Both results are contiguous
// along the reduction of their product, in whole groups of 128 padded with zeros; one pass reads the source for both.
struct CastCodes {
    std::byte* rows = nullptr;             // [rows, columns in groups]; may be null
    bool tiles = false;                    // writes rows as an operand of codes (operand_matmul_cuda.h) instead
    std::byte* columns = nullptr;          // transposed: [cols, rows in groups]; may be null
    CodeScales row_scales, column_scales;  // blocks: factors of the codes
    float* scale = nullptr;                // tensor scale, as in CastValues
    float* amax = nullptr;                 // written if no scale is given
    float* seen = nullptr;
    CastFactor factor;  // factor of the tensor scale
};
// The source has adjacent rows, no `down` and no scale. `given`: see cast_values().
Status cast_codes(const CastSource& from, const CastRule& rule, const float* given, const CastCodes& to,
                  const Stream& stream);
// MS-EDEN, padded to whole groups of 128. The draw for sign i of `signs` is first_sign + i.
Status eden_values(const CastSource& from, const CastRandom& random, const CastRandom& signs, uint64_t first_sign,
                   const CastValues& to, const Stream& stream);

// out[i] = fl(fl(*a * *b) * constant), i < count.
Status product_scales(const float* a, const float* b, float constant, float* out, int64_t count, const Stream& stream);

// Raises *seen to the largest magnitude of x: `count` BF16 numbers, a multiple of 8.
Status see_largest(const std::byte* x, int64_t count, float* seen, const Stream& stream);
// Sets dx = 0 where |x| exceeds the largest value of NVFP4 inputs under *input_scale. BF16; count as above.
Status clear_clipped(const std::byte* x, int64_t count, const float* input_scale, std::byte* dx, const Stream& stream);

// Updates scales after a step. If *clip is NaN, only the held maxima are discarded (unless `hold`).
Status renew_scales(const DelayedScales& d, const float* clip, const Stream& stream);

Status split_rows(const SplitRows& s, const Stream& stream);
// dw [rows, cols] += turned [rows, pitch] P^T, FP32.
Status add_term(const float* turned, int64_t rows, const SplitRows& of, float* dw, const Stream& stream);
// y [n, cols] += more; rows of `more` are adjacent.
Status add_rows(float* y, int64_t stride, const float* more, int64_t n, int64_t cols, const Stream& stream);
// to += from; nothing changes if *clip is NaN.
Status add_step(float* to, const float* from, int64_t count, const float* clip, const Stream& stream);

}  // namespace nibble::cuda
