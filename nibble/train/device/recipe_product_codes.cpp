// The two products of the backward pass on the FP8 tensor cores. Both need their operands along the reduction: dY and
// W^T along W's rows, dY^T and X^T along tokens.
#include "train/device/cast_operand.h"
#include "train/device/device_recipe.h"

#include <algorithm>

namespace nibble {

int64_t RecipeProduct::codes_back_size(int64_t n) const {
    const UnitRules& r = early_;
    const int64_t rows = weight_.rows, cols = weight_.cols;
    return coded_size(n, rows, r.dy, {true, true}) + coded_size(n, cols, r.x_t, {.columns = true}) +
           in_arena(2 * coded_rows(n) * cols);
}

// Magnitudes are recorded for either product, because experts' input gradients read dY before it is weighed.
Result<Codes> RecipeProduct::gradient_codes(const std::byte* dy, int64_t n, CodesWanted wanted,
                                            DeviceStep& step) const {
    float* const to = step_.recording ? seen(DelayedUnits::gradients) : nullptr;
    return coded({.x = dy, .rows = n, .cols = weight_.rows}, rules().dy, wanted, step, given(DelayedUnits::gradients),
                 to);
}

Status RecipeProduct::codes_input_gradient(const Codes& dy, int64_t n, std::byte* dx, TrainWork& work) const {
    const UnitRules& r = rules();
    DeviceStep& step = work.step;
    const int64_t m = coded_rows(n), cols = weight_.cols;
    std::byte* to = dx;
    if (m != n) {
        NIBBLE_TRY(to, step.scratch.allocate(2 * m * cols));
    }
    NIBBLE_TRY(const cuda::CodesPlan* plan, work.plans.of({.m = m,
                                                           .n = cols,
                                                           .k = cuda::codes_pitch(weight_.rows),
                                                           .e5m2 = r.dy.format == CastFormat::fp8_e5m2,
                                                           .a = code_scaling(r.dy),
                                                           .b = code_scaling(r.w_back),
                                                           .rounded = true}));
    const float* of_w = in_blocks(r.w_back) || !one_rounding() ? back_scales_ : scales_;
    NIBBLE_CHECK(
        cuda::codes_matmul(*plan, {dy.rows, dy.row_scales}, {back_, of_w}, to, false, work.workspace, step.stream));
    return to == dx ? Status(Ok{}) : copy_on_device(dx, to, 2 * n * cols, step.stream);
}

Status RecipeProduct::codes_weight_gradient(const Codes& dy, const std::byte* x, int64_t n, float* gradient, bool add,
                                            TrainWork& work) const {
    const UnitRules& r = rules();
    DeviceStep& step = work.step;
    NIBBLE_TRY(const Codes of_x, coded({.x = x, .rows = n, .cols = weight_.cols}, r.x_t, {.columns = true}, step,
                                       given(DelayedUnits::inputs)));
    NIBBLE_TRY(const cuda::CodesPlan* plan, work.plans.of({.m = weight_.rows,
                                                           .n = weight_.cols,
                                                           .k = cuda::codes_pitch(n),
                                                           .e5m2 = r.dy_t.format == CastFormat::fp8_e5m2,
                                                           .a = code_scaling(r.dy_t),
                                                           .b = code_scaling(r.x_t)}));
    return cuda::codes_matmul(*plan, {dy.columns, dy.column_scales}, {of_x.columns, of_x.column_scales},
                              gradient + weight_.at, add, work.workspace, step.stream);
}

}  // namespace nibble
