// Quantizes the operands of a RecipeProduct into scratch memory (kernels/cast_cuda.h), and answers questions about
// rules.
#pragma once

#include "base/checked.h"
#include "kernels/cast_cuda.h"
#include "kernels/codes_matmul_cuda.h"
#include "model/device/step.h"
#include "train/train_rules.h"

namespace nibble {

// Roles of random numbers. train/host_recipe.cpp has the same list.
enum CastRole : uint32_t { row_role = 1, column_role, weight_role, input_role, input_signs, weight_signs, first_role };

inline float divisor_of(const CastRule& rule) { return rule.format == CastFormat::nvfp4 ? nv_largest(rule) : 1.0f; }
inline int64_t in_arena(int64_t bytes) { return round_up(bytes, DeviceArena::alignment); }
// Rows of an expert in the backward pass, padded with zeros because products are planned for few numbers of rows.
inline int64_t expert_rows(int64_t n) { return round_up<int64_t>(n, 64); }
inline bool in_blocks(const CastRule& rule) {
    return rule.format == CastFormat::fp8_block || rule.format == CastFormat::fp8_block2;
}
// Returns true for NVFP4 weights with everything else in BF16.
inline bool weights_only(const UnitRules& r) {
    return !r.eden && r.dy.format == CastFormat::bf16 && r.w_back.format == CastFormat::nvfp4;
}
inline int64_t eden_padded(int64_t n) { return round_up<int64_t>(n, eden_group); }

struct Quantized {
    std::byte* values = nullptr;
    float* scale = nullptr;  // one, or one per row, or one per block; null: 1
    // Set if requested and if there is a scale: factor of the product's sums, which combines this scale with the other
    // operand's.
    float* factor = nullptr;
};
struct FactorWanted {
    const float* other = nullptr;  // scale of the other operand; null: no factor
    float constant = 1;
    int64_t count = 1;
};

// Quantizes an operand. `given` and `seen` belong to a delayed scale: the scale to use, and the maximum to update.
Result<Quantized> quantized(const cuda::CastSource& from, const CastRule& rule, const CastRandom& random,
                            DeviceStep& step, const float* given = nullptr, float* seen = nullptr,
                            const FactorWanted& factor = {});
Result<Quantized> eden_quantized(const cuda::CastSource& from, const CastRandom& random, const CastRandom& signs,
                                 uint64_t first_sign, DeviceStep& step);
// Quantizes one source in both directions, for rules with cuda::casts_both(). Rows are allocated after columns_end, so
// that their memory can be released while the columns are in use.
struct CastDraw {
    CastRule rule;
    CastRandom random;
};
struct QuantizedBoth {
    Quantized rows, columns;
    DeviceArena::Mark columns_end;
};
// factor: for the rows.
Result<QuantizedBoth> quantized_both(const cuda::CastSource& from, const CastDraw& rows, const CastDraw& columns,
                                     const FactorWanted& factor, DeviceStep& step);
// Return the bytes of scratch memory that quantized() and eden_quantized() use, without factors.
int64_t quantized_size(int64_t outer, int64_t reduction, const CastRule& rule);
int64_t eden_size(int64_t outer, int64_t reduction);

// Codes of x [rows, cols] for codes_matmul(): rows along columns (padded to a multiple of 16 rows), and columns along
// rows.
struct Codes {
    std::byte* rows = nullptr;
    std::byte* columns = nullptr;
    float* row_scales = nullptr;  // a per-tensor scale is the same for both
    float* column_scales = nullptr;
};
struct CodesWanted {
    bool rows = false, columns = false;
};
inline int64_t coded_rows(int64_t rows) { return round_up<int64_t>(rows, 16); }
inline cuda::CodeScaling code_scaling(const CastRule& rule) {
    return !in_blocks(rule) ? cuda::CodeScaling::tensor
           : rule.square    ? cuda::CodeScaling::tile
                            : cuda::CodeScaling::group;
}
Result<Codes> coded(const cuda::CastSource& from, const CastRule& rule, CodesWanted wanted, DeviceStep& step,
                    const float* given = nullptr, float* seen = nullptr);
int64_t coded_size(int64_t rows, int64_t cols, const CastRule& rule, CodesWanted wanted);

}  // namespace nibble
