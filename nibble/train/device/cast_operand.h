// Quantized operands of a TrainProduct in scratch memory (kernels/cast_cuda.h), and what it asks about rules.
#pragma once

#include "base/checked.h"
#include "kernels/cast_cuda.h"
#include "kernels/codes_product_cuda.h"
#include "model/device/step.h"
#include "train/train_rules.h"

namespace nibble {

// What random numbers are drawn for; train/train_products.cpp has the same.
enum CastRole : uint32_t { row_role = 1, column_role, weight_role, input_role, input_signs, weight_signs, first_role };

inline float divisor_of(const CastRule& rule) { return rule.format == CastFormat::nvfp4 ? nv_largest(rule) : 1.0f; }
inline int64_t in_arena(int64_t bytes) { return round_up(bytes, DeviceArena::alignment); }
// Rows of an expert on the way back, with zeros behind them: products of few numbers of rows are planned.
inline int64_t expert_rows(int64_t n) { return round_up<int64_t>(n, 64); }
inline bool in_blocks(const CastRule& rule) {
    return rule.format == CastFormat::fp8_block || rule.format == CastFormat::fp8_block2;
}
// NVFP4 weights, all else BF16.
inline bool weights_only(const UnitRules& r) {
    return !r.eden && r.dy.format == CastFormat::bf16 && r.w_back.format == CastFormat::nvfp4;
}
inline int64_t eden_padded(int64_t n) { return round_up<int64_t>(n, eden_group); }

struct Quantized {
    std::byte* values = nullptr;
    float* scale = nullptr;  // one, or one of each row, or of each block; null: 1
    // Where it was asked for and there is a scale: by the other operand's, what multiplies the sums of their product.
    float* factor = nullptr;
};
struct FactorWanted {
    const float* other = nullptr;  // null: none
    float constant = 1;
    int64_t count = 1;
};

// `given`, `seen`: of a delayed scale.
Result<Quantized> quantized(const cuda::CastSource& from, const CastRule& rule, const CastRandom& random,
                            DeviceStep& step, const float* given = nullptr, float* seen = nullptr,
                            const FactorWanted& factor = {});
Result<Quantized> eden_quantized(const cuda::CastSource& from, const CastRandom& random, const CastRandom& signs,
                                 uint64_t first_sign, DeviceStep& step);
// Both directions of one source, where cuda::casts_both() the rules. Rows lie behind columns_end, so that their room
// can be given back while columns are wanted.
struct CastDraw {
    CastRule rule;
    CastRandom random;
};
struct QuantizedBoth {
    Quantized rows, columns;
    DeviceArena::Mark columns_end;
};
// factor: of the rows.
Result<QuantizedBoth> quantized_both(const cuda::CastSource& from, const CastDraw& rows, const CastDraw& columns,
                                     const FactorWanted& factor, DeviceStep& step);
// What they take of scratch memory, without factors.
int64_t quantized_size(int64_t outer, int64_t reduction, const CastRule& rule);
int64_t eden_size(int64_t outer, int64_t reduction);

// Codes of x [rows, cols] as codes_product() multiplies them: of rows along columns, rows in whole groups of 16, and of
// columns along rows.
struct Codes {
    std::byte* rows = nullptr;
    std::byte* columns = nullptr;
    float* row_scales = nullptr;  // of a tensor both are one
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
