#include "train/device/cast_operand.h"

#include "kernels/operand_matmul_cuda.h"

namespace nibble {
namespace {

int64_t scales_of(int64_t outer, int64_t reduction, const CastRule& rule) {
    return in_blocks(rule) ? outer * cast_padded(reduction, rule) / fp8_group : outer;
}

Result<cuda::CastFactor> factor_of(const FactorWanted& wanted, DeviceStep& step) {
    cuda::CastFactor f{.other = wanted.other, .constant = wanted.constant, .count = wanted.count};
    if (!f.other) return f;
    NIBBLE_TRY(f.out, step.scratch.allocate_array<float>(f.count));
    return f;
}

}  // namespace

int64_t quantized_size(int64_t outer, int64_t reduction, const CastRule& rule) {
    return in_arena(2 * outer * cast_padded(reduction, rule)) + in_arena(4 * scales_of(outer, reduction, rule)) +
           in_arena(4);
}

int64_t eden_size(int64_t outer, int64_t reduction) {
    return in_arena(2 * outer * eden_padded(reduction)) + 2 * in_arena(4);
}

Result<Quantized> eden_quantized(const cuda::CastSource& from, const CastRandom& random, const CastRandom& signs,
                                 uint64_t first_sign, DeviceStep& step) {
    Quantized q;
    NIBBLE_TRY(q.values, step.scratch.allocate(2 * from.outer() * eden_padded(from.reduction())));
    NIBBLE_TRY(q.scale, step.scratch.allocate_array<float>(1));
    NIBBLE_TRY(float* amax, step.scratch.allocate_array<float>(1));
    NIBBLE_CHECK(cuda::eden_values(from, random, signs, first_sign, {q.values, q.scale, amax}, step.stream));
    return q;
}

Result<Quantized> quantized(const cuda::CastSource& from, const CastRule& rule, const CastRandom& random,
                            DeviceStep& step, const float* given, float* seen, const FactorWanted& factor) {
    Quantized q;
    NIBBLE_TRY(q.values, step.scratch.allocate(2 * from.outer() * cast_padded(from.reduction(), rule)));
    if (in_blocks(rule)) {
        NIBBLE_TRY(q.scale, step.scratch.allocate_array<float>(scales_of(from.outer(), from.reduction(), rule)));
        NIBBLE_CHECK(cuda::cast_blocks(from, rule, {q.values, q.scale}, step.stream));
        return q;
    }
    cuda::CastValues to{.values = q.values, .seen = seen};
    if (rule.format != CastFormat::mxfp8) {
        NIBBLE_TRY(q.scale, step.scratch.allocate_array<float>(rule.row_scaled ? from.rows : 1));
        NIBBLE_TRY(to.amax, step.scratch.allocate_array<float>(1));
        NIBBLE_TRY(to.factor, factor_of(factor, step));
        to.scale = q.scale, q.factor = to.factor.out;
    }
    NIBBLE_CHECK(cuda::cast_values(from, rule, random, given, to, step.stream));
    return q;
}

Result<QuantizedBoth> quantized_both(const cuda::CastSource& from, const CastDraw& rows, const CastDraw& columns,
                                     const FactorWanted& factor, DeviceStep& step) {
    QuantizedBoth q;
    cuda::CastBoth to;
    if (rows.rule.format != CastFormat::mxfp8) {
        NIBBLE_TRY(to.scales, step.scratch.allocate_array<float>(4));
        to.amax = to.scales + 2;
        q.rows.scale = to.scales, q.columns.scale = to.scales + 1;
    }
    NIBBLE_TRY(to.columns, step.scratch.allocate(2 * from.cols * cast_padded(from.rows, columns.rule)));
    q.columns_end = step.scratch.mark();
    NIBBLE_TRY(to.rows, step.scratch.allocate(2 * from.rows * cast_padded(from.cols, rows.rule)));
    if (to.scales) {
        NIBBLE_TRY(to.factor, factor_of(factor, step));
        q.rows.factor = to.factor.out;
    }
    q.rows.values = to.rows, q.columns.values = to.columns;
    NIBBLE_CHECK(cuda::cast_both(from, rows.rule, rows.random, columns.rule, columns.random, to, step.stream));
    return q;
}

int64_t coded_size(int64_t rows, int64_t cols, const CastRule& rule, CodesWanted wanted) {
    const int64_t padded = coded_rows(rows);
    const auto scales = [&](int64_t outer, int64_t k) {
        return in_arena(4 * cuda::code_scale_count(outer, k, code_scaling(rule)));
    };
    int64_t size = in_arena(4);  // amax
    if (wanted.rows) size += in_arena(padded * cuda::codes_pitch(cols)) + scales(padded, cols);
    if (wanted.columns) size += in_arena(cols * cuda::codes_pitch(rows)) + scales(cols, rows);
    return size;
}

// Rows beyond the last one, and their scales, are not initialized. Their results are not used.
Result<Codes> coded(const cuda::CastSource& from, const CastRule& rule, CodesWanted wanted, DeviceStep& step,
                    const float* given, float* seen) {
    const int64_t padded = coded_rows(from.rows), cols = from.cols;
    Codes c;
    if (wanted.rows) {
        NIBBLE_TRY(c.rows, step.scratch.allocate(padded * cuda::codes_pitch(cols)));
    }
    if (wanted.columns) {
        NIBBLE_TRY(c.columns, step.scratch.allocate(cols * cuda::codes_pitch(from.rows)));
    }
    cuda::CastCodes to{.rows = c.rows, .columns = c.columns, .seen = seen};
    const cuda::CodeScaling by = code_scaling(rule);
    if (by == cuda::CodeScaling::tensor) {
        NIBBLE_TRY(to.scale, step.scratch.allocate_array<float>(1));
        NIBBLE_TRY(to.amax, step.scratch.allocate_array<float>(1));
        c.row_scales = c.column_scales = to.scale;
    } else {
        if (wanted.rows) {
            NIBBLE_TRY(c.row_scales, step.scratch.allocate_array<float>(cuda::code_scale_count(padded, cols, by)));
            to.row_scales = cuda::code_scales(c.row_scales, padded, cols, by);
        }
        if (wanted.columns) {
            const int64_t count = cuda::code_scale_count(cols, from.rows, by);
            NIBBLE_TRY(c.column_scales, step.scratch.allocate_array<float>(count));
            to.column_scales = cuda::code_scales(c.column_scales, cols, from.rows, by);
        }
    }
    NIBBLE_CHECK(cuda::cast_codes(from, rule, given, to, step.stream));
    return c;
}

}  // namespace nibble
