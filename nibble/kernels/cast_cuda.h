// Operands of training's products on a GPU, rounded as formats/training.h says: the codes and scales of
// train/train_cast.h and train/train_eden.h on the host, bit for bit.
//
// The results are values: code * block scale, which BF16 holds exactly, in the layout of the source, so that any BF16
// product computes what a GPU with the format would; scales of rows or of the tensor multiply the finished sum.
//
// Pointers are device pointers, 16-byte aligned (vectors of floats: 4). Functions queue work and return at once; they
// neither allocate nor wait.
#pragma once

#include "formats/training.h"
#include "kernels/cast_args.h"
#include "tensor/device.h"

namespace nibble::cuda {

// x [rows, cols] BF16; columns a multiple of 8. `down`: the reduction runs over rows, else over columns.
struct CastSource {
    const std::byte* x = nullptr;
    int64_t rows = 0, cols = 0;
    int64_t stride = 0;  // elements from row to row, a multiple of 8; 0: cols
    bool down = false;
    // x is read as x * fl(scale * factor): values of an operand. null: as it is. by_row: a scale of each row.
    const float* scale = nullptr;
    bool scale_by_row = false;
    float factor = 1.0f;
    // The largest magnitude of what is read, NaN left out, where it is known already: casts that need it and do not
    // rotate take it from here, and CastValues::amax stays as it is. null: it is not.
    const float* amax = nullptr;

    int64_t reduction() const { return down ? rows : cols; }
    int64_t outer() const { return down ? cols : rows; }
};

struct CastValues {
    std::byte* values = nullptr;  // BF16; down: [padded rows, cols], else [rows, padded cols]; not the source
    float* scale = nullptr;       // what CastOperand::scale holds: one number, with row_scaled one of each row
    float* amax = nullptr;  // one number, the largest magnitude of the (rotated) source; all but row_scaled, mxfp8
    float* seen = nullptr;  // of fp8: raised to amax
    CastFactor factor;      // not of mxfp8, nor of squares; of columns one
};
// Formats bf16, fp8, fp8_e5m2, mxfp8 and nvfp4. `given`: the scale of fp8 that multiplies, on the device (delayed).
// square: not `down`, columns a multiple of 16.
Status cast_values(const CastSource& from, const CastRule& rule, const CastRandom& random, const float* given,
                   const CastValues& to, const Stream& stream);
// Both directions of one source with one reading of it for scales and one for values: what cast_values() gives as
// `rows` by one rule and, of the same source `down`, as `columns` by the other.
struct CastBoth {
    std::byte* rows = nullptr;     // [rows, padded cols]
    std::byte* columns = nullptr;  // [padded rows, cols]
    float* scales = nullptr;       // two numbers, of rows and of columns
    float* amax = nullptr;         // two numbers; these and the scales not of mxfp8
    CastFactor factor;             // of the rows
};
// Whether there is a kernel for them: formats mxfp8 and nvfp4, the rows not rotated, one scale of the tensor, blocks in
// one direction without a search.
bool casts_both(const CastRule& rows, const CastRule& columns);
Status cast_both(const CastSource& from, const CastRule& rows, const CastRandom& rows_random, const CastRule& columns,
                 const CastRandom& columns_random, const CastBoth& to, const Stream& stream);
// Formats fp8_block and fp8_block2: codes as BF16, in [outer, padded reduction] for both directions (`down`: turned),
// and in to.scale [outer, padded / 128] what a block's codes are multiplied with; square: [ceil(outer / 128), padded /
// 128]. The source has no scale.
Status cast_blocks(const CastSource& from, const CastRule& rule, const CastValues& to, const Stream& stream);
// Codes of eight bits for the FP8 tensor cores: formats fp8, fp8_e5m2, fp8_block and fp8_block2. Each lies along the
// reduction of its product in whole groups of 128, zeros behind it; both directions in one reading of the source.
struct CastCodes {
    std::byte* rows = nullptr;             // [rows, columns in groups]; null: not wanted
    bool tiles = false;                    // rows go into an operand of codes (product_cuda.h) instead
    std::byte* columns = nullptr;          // [cols, rows in groups], of the transpose; null: not wanted
    CodeScales row_scales, column_scales;  // of blocks: what codes are multiplied with
    float* scale = nullptr;                // of a tensor, as CastValues has them
    float* amax = nullptr;                 // where no scale is given
    float* seen = nullptr;
    CastFactor factor;  // of a tensor
};
// The source lies with adjacent rows, is not `down` and has no scale. `given`: as cast_values() takes it.
Status cast_codes(const CastSource& from, const CastRule& rule, const float* given, const CastCodes& to,
                  const Stream& stream);
// MS-EDEN; padded to whole groups of 128. The draws of the signs are first_sign + index of `signs`.
Status eden_values(const CastSource& from, const CastRandom& random, const CastRandom& signs, uint64_t first_sign,
                   const CastValues& to, const Stream& stream);

// out[i] = fl(fl(*a * *b) * constant), i < count.
Status product_scales(const float* a, const float* b, float constant, float* out, int64_t count, const Stream& stream);

// *seen is raised to the largest magnitude of x, `count` numbers of BF16, a multiple of 8.
Status see_largest(const std::byte* x, int64_t count, float* seen, const Stream& stream);
// dx = 0 where |x| is above the largest number that NVFP4 inputs under *input_scale reach; BF16, counts as above.
Status clear_clipped(const std::byte* x, int64_t count, const float* input_scale, std::byte* dx, const Stream& stream);

// Scales after a step; where *clip is NaN nothing but that what was held is forgotten, unless it is held on.
Status renew_scales(const DelayedScales& d, const float* clip, const Stream& stream);

Status split_rows(const SplitRows& s, const Stream& stream);
// dw [rows, cols] += turned [rows, pitch] P^T, FP32.
Status add_term(const float* turned, int64_t rows, const SplitRows& of, float* dw, const Stream& stream);
// y [n, cols] += more, whose rows are adjacent.
Status add_rows(float* y, int64_t stride, const float* more, int64_t n, int64_t cols, const Stream& stream);
// to += from; nothing where *clip is NaN.
Status add_step(float* to, const float* from, int64_t count, const float* clip, const Stream& stream);

}  // namespace nibble::cuda
