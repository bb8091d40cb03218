#include "train/device/cast_operand.h"

namespace nibble {
namespace {

int64_t scales_of(int64_t outer, int64_t reduction, const CastRule& rule) {
    return in_blocks(rule) ? outer * cast_padded(reduction, rule) / fp8_group : outer;
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
                            DeviceStep& step, const float* given, float* seen) {
    Quantized q;
    NIBBLE_TRY(q.values, step.scratch.allocate(2 * from.outer() * cast_padded(from.reduction(), rule)));
    if (in_blocks(rule)) {
        NIBBLE_TRY(q.scale, step.scratch.allocate_array<float>(scales_of(from.outer(), from.reduction(), rule)));
        NIBBLE_CHECK(cuda::cast_blocks(from, rule, {q.values, q.scale}, step.stream));
        return q;
    }
    float* amax = nullptr;
    if (rule.format != CastFormat::mxfp8) {
        NIBBLE_TRY(q.scale, step.scratch.allocate_array<float>(rule.row_scaled ? from.rows : 1));
        NIBBLE_TRY(amax, step.scratch.allocate_array<float>(1));
    }
    NIBBLE_CHECK(cuda::cast_values(from, rule, random, given, {q.values, q.scale, amax, seen}, step.stream));
    return q;
}

}  // namespace nibble
