// Operands of products in training, rounded as TransformerEngine 2.20 rounds them (the FP32 order of every scale is its
// own) and held as numbers that FP32 holds exactly: value(code) * block scale. Scales of rows or tensors multiply the
// finished sum. So a product of such operands is the one a GPU with these formats computes, but for the order of its
// FP32 sum.
//
// A matrix is quantized along its rows: [outer, reduction]. The copy for a product that sums over tokens is that of the
// transposed matrix. Sources are read as BF16: they are rounded to it first.
#pragma once

#include "base/philox.h"
#include "base/thread_pool.h"
#include "formats/minifloat.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace nibble {

enum class CastFormat : uint8_t {
    bf16,
    fp8,         // E4M3, one scale of the tensor: 448 / amax
    fp8_e5m2,    // E5M2, 57344 / amax
    fp8_block,   // E4M3, scales amax / 448 of 1 x 128, weights 128 x 128 (DeepSeek-V3)
    fp8_block2,  // the same, 448 / amax rounded down to a power of two (TransformerEngine's default)
    mxfp8,       // E4M3, E8M0 of 1 x 32, rounded up
    nvfp4,       // E2M1, E4M3 of 1 x 16 or 16 x 16, FP32 of the tensor
};

struct CastRule {
    CastFormat format = CastFormat::bf16;
    bool rotate = false;      // 16-point Hadamard transform along the reduction first (TransformerEngine's signs)
    bool stochastic = false;  // E2M1 codes by stochastic rounding
    bool square = false;      // one scale for 16 x 16 (weights)
    bool four_over_six = false;
    bool row_scaled = false;  // the tensor's scale is each row's own
};

// Random bits of a copy: block `g` of the Philox generator has eight bits for each of 16 neighbours along the
// reduction. g = (first_outer + outer) * outer_step + (first_group + group) * group_step: of a row copy of [R, C] it is
// r * (C / 16) + c / 16, of a column copy (r / 16) * C + c, r counted over all rows of the step.
struct CastRandom {
    uint32_t id = 0;    // 8 * unit + role
    uint64_t draw = 0;  // seed * 2^20 + step
    uint64_t first_outer = 0, first_group = 0, outer_step = 1, group_step = 1;

    constexpr PhiloxBlock block(uint64_t outer, uint64_t group) const {
        const uint64_t g = (first_outer + outer) * outer_step + (first_group + group) * group_step;
        return philox4x32({{static_cast<uint32_t>(g), static_cast<uint32_t>(g >> 32),
                            static_cast<uint32_t>(draw >> 32), 0}},
                          id, static_cast<uint32_t>(draw));
    }
};

struct CastOperand {
    int64_t rows = 0, cols = 0;       // cols: the reduction, padded with zeros to whole blocks
    std::vector<float> values;        // [rows, cols]
    std::vector<float> scale;         // one, or one of each row
    float divisor = 1;                // the sum is multiplied with scale_a * scale_b * fl(1 / (divisor_a * divisor_b))
    std::vector<float> block_scales;  // fp8_block: [rows, cols / 128], values are codes; else empty
    std::vector<uint8_t> scale_codes;  // nvfp4, mxfp8: [rows, cols / block], E4M3 or E8M0, in `values` already
    float amax = 0;                   // of the rotated source
    int64_t zero_blocks = 0, saturated = 0;  // nvfp4: blocks whose scale is 0 though they are not; codes beyond 6
};

// x [rows, cols], `stride` floats from row to row. `fp8_scale`: multiplies instead of 448 / amax (delayed, frozen).
CastOperand cast_rows(const float* x, int64_t rows, int64_t cols, int64_t stride, const CastRule& rule,
                      const CastRandom& random, std::optional<float> fp8_scale, ThreadPool& pool);
// The transpose of an operand of a matrix with `cols` columns, without the padding; its scales are squares or the
// tensor's.
CastOperand transposed_cast(const CastOperand& operand, int64_t cols, ThreadPool& pool);

// ---- The formulas, one number at a time ----------------------------------------------------------------------------

struct NvScale {  // of a tensor: T its largest magnitude, `largest` 6 * 448 or 6 * 256
    float encode, decode;
};
NvScale nv_tensor_scale(float t, float largest);
// The stored byte of a block with largest magnitude b, and what its elements are multiplied with.
uint8_t nv_block_scale(float b, NvScale tensor);
float nv_element_scale(uint8_t block, NvScale tensor);
// Four over six: candidates fl(fl(b / 6) * encode) * factor, at most 448.
uint8_t nv_factor_scale(float b, float factor, NvScale tensor);

// |x| rounded up with probability floor(256 f) / 256, f its place between neighbours: truncates fma(byte / 256, step,
// |x|). Beyond 6 it is 6. The code with its sign.
uint8_t e2m1_stochastic_byte(float x, uint8_t byte);

// 448 / amax (57344 / amax), 1 for an amax that is 0 or not finite.
float fp8_current_scale(float amax, float largest);
float fp8_power_of_two(float scale);  // rounded down
uint8_t mx_scale_up(float amax);      // E8M0 of amax / 448, up

inline constexpr uint32_t rotation_signs = 0xD7E8;

}  // namespace nibble
