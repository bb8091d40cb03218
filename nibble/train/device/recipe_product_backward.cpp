// The two products of the backward pass.
#include "kernels/elementwise_cuda.h"
#include "kernels/optimizer_cuda.h"
#include "train/device/cast_operand.h"
#include "train/device/device_recipe.h"

#include <algorithm>

namespace nibble {

int64_t RecipeProduct::back_scratch_bytes(int64_t n) const {
    const int64_t rows = weight_.rows, cols = weight_.cols;
    const int64_t of_used = split_size(n) + (early_.rank > 0 || draws() ? quantized_size(n, cols, early_.x) : 0);
    if (early_.plain_back) return split_size(n);
    if (draws()) {
        const int64_t turned = directions_ ? in_arena(4 * rows * directions_->pitch()) : 0;
        return std::max(eden_size(n, rows), of_used + eden_size(rows, n) + eden_size(cols, n) + turned) + in_arena(4);
    }
    if (back_codes(early_)) return codes_back_size(n);
    int64_t input = quantized_size(n, rows, early_.dy) + in_arena(4);
    int64_t weight = of_used + quantized_size(rows, n, early_.dy_t) + quantized_size(cols, n, early_.x_t) + in_arena(4);
    if (directions_) weight += in_arena(4 * rows * directions_->pitch());
    if (casts_both(early_)) input += quantized_size(rows, n, early_.dy_t);
    if (in_blocks(early_.dy)) input += in_arena(4 * n * cols);
    if (in_blocks(early_.dy_t))
        weight += in_arena(cuda::operand_bytes(cols, cast_padded(n, early_.x_t))) + in_arena(4 * rows * cols);
    return std::max(input, weight);
}

Status RecipeProduct::input_gradient(const std::byte* dy, const std::byte* x, int64_t n, std::byte* dx,
                                     TrainWork& work) const {
    const UnitRules& r = rules();
    DeviceStep& step = work.step;
    const DeviceScope scope(step);
    NIBBLE_CHECK(look_at_rows(OperandSamples::gradients, dy, n, step.stream));
    if (back_codes(r)) {
        NIBBLE_TRY(const Codes codes, gradient_codes(dy, n, {.rows = true}, step));
        return codes_input_gradient(codes, n, dx, work).within(weight_.name);
    }
    if (r.plain_back) {
        NIBBLE_TRY(const cuda::BackPlan* plan, work.plans.of(n, weight_.rows, weight_.cols));
        return cuda::back_input_gradient(*plan, dy, work.published + 2 * weight_.at, dx, work.workspace, step.stream)
            .within(weight_.name);
    }
    const cuda::CastSource from{.x = dy, .rows = n, .cols = weight_.rows};
    if (weights_only(r)) {
        NIBBLE_TRY(const cuda::BackScale scale, back_scale(step_.ends + 1, by_weight_back(), step));
        NIBBLE_TRY(const cuda::BackPlan* plan, work.plans.of(n, back_rows(), weight_.cols, true));
        NIBBLE_CHECK(
            cuda::back_input_gradient(*plan, dy, back_, dx, work.workspace, step.stream, scale).within(weight_.name));
        if (!r.x.stored || !step_.stored) return Ok{};
        return cuda::clear_clipped(x, n * weight_.cols, given(DelayedUnits::inputs), dx, step.stream);
    }
    NIBBLE_TRY(const Quantized q, draws() ? eden_quantized(from, row_random(), random(input_signs), 0, step)
                                          : quantized(from, r.dy, row_random(), step, given(DelayedUnits::gradients),
                                                      step_.recording ? seen(DelayedUnits::gradients) : nullptr));
    return values_input_gradient(q, n, dx, work).within(weight_.name);
}

FactorWanted RecipeProduct::by_weight_back() const {
    const UnitRules& r = rules();
    return {.other = one_copy() ? scales_ : back_scales_,
            .constant = draws() ? 1.0f : 1.0f / (divisor_of(r.dy) * divisor_of(r.w_back))};
}

CastRandom RecipeProduct::row_random() const {
    CastRandom r = random(row_role);
    r.first_outer = step_.tokens;
    r.outer_step = static_cast<uint64_t>((back_rows() + 15) / 16);
    return r;
}
CastRandom RecipeProduct::column_random(uint32_t role, int64_t columns) const {
    CastRandom r = random(role);
    r.first_group = step_.groups;
    r.group_step = static_cast<uint64_t>(columns);
    return r;
}

Status RecipeProduct::values_input_gradient(const Quantized& q, int64_t n, std::byte* dx, TrainWork& work) const {
    const UnitRules& r = rules();
    DeviceStep& step = work.step;
    const int64_t padded = back_rows();
    if (!draws() && in_blocks(r.dy)) {
        const cuda::ProductInput in{.x = q.values, .tokens = n, .group_scales = q.scale};
        const cuda::Operand w{.rows = weight_.cols, .cols = padded, .tiles = back_, .tile_scales = back_scales_};
        if (cuda::has_rounded_matmul(w, n)) return cuda::rounded_matmul(in, w, dx, weight_.cols, false, step.stream);
        NIBBLE_TRY(float* unrounded, step.scratch.allocate_array<float>(n * weight_.cols));
        NIBBLE_CHECK(cuda::matmul(in, w, unrounded, weight_.cols, false, step.stream));
        return cuda::to_rows(unrounded, 0, n, weight_.cols, {dx}, false, step.stream);
    }
    NIBBLE_TRY(const cuda::BackScale scale, back_scale(q, by_weight_back(), step));
    NIBBLE_TRY(const cuda::BackPlan* plan, work.plans.of(n, padded, weight_.cols, scale.factor != nullptr));
    return cuda::back_input_gradient(*plan, q.values, back_, dx, work.workspace, step.stream, scale);
}

// Returns the factor of a backward sum, if any: the one stored with an operand, or one computed now.
Result<cuda::BackScale> RecipeProduct::back_scale(const Quantized& q, const FactorWanted& by, DeviceStep& step) const {
    if (q.factor) return cuda::BackScale{q.factor, step_.ends};
    return back_scale(q.scale, by, step);
}
Result<cuda::BackScale> RecipeProduct::back_scale(const float* scale, const FactorWanted& by, DeviceStep& step) const {
    if (!scale) return cuda::BackScale{};
    NIBBLE_TRY(float* factor, step.scratch.allocate_array<float>(1));
    NIBBLE_CHECK(cuda::product_scales(scale, by.other, by.constant, factor, 1, step.stream));
    return cuda::BackScale{factor, step_.ends};
}

// For a term along directions, or MS-EDEN, returns the values that the forward product multiplied, if they are NVFP4.
Result<RecipeProduct::Used> RecipeProduct::used(const std::byte* x, int64_t n, DeviceStep& step) const {
    const UnitRules& r = rules();
    Used u{.source = {.x = x, .rows = n, .cols = weight_.cols, .down = true}};
    if (r.rank == 0 && !draws()) return u;
    if (r.rank > 0) {
        NIBBLE_TRY(std::byte * along, step.scratch.allocate(2 * n * directions_->pitch()));
        NIBBLE_TRY(std::byte * rest, step.scratch.allocate(2 * n * weight_.cols));
        NIBBLE_CHECK(directions_->split(x, n, along, rest, step.stream));
        u.along = along, u.source.x = rest;
    }
    if (r.x.format != CastFormat::nvfp4 || r.plain_back) return u;
    NIBBLE_TRY(const Quantized q, quantized({.x = u.source.x, .rows = n, .cols = weight_.cols}, r.x, {}, step));
    u.source.x = q.values;
    u.source.stride = cast_padded(weight_.cols, r.x);
    u.source.scale = q.scale;
    u.source.scale_by_row = r.x.row_scaled;
    u.source.factor = 1.0f / divisor_of(r.x);
    return u;
}

Status RecipeProduct::weight_gradient(const std::byte* dy, const std::byte* x, int64_t n, float* gradient, bool add,
                                      TrainWork& work) const {
    const UnitRules& r = rules();
    DeviceStep& step = work.step;
    const DeviceScope scope(step);
    if (back_codes(r)) {
        NIBBLE_TRY(const Codes codes, gradient_codes(dy, n, {.columns = true}, step));
        return codes_weight_gradient(codes, x, n, gradient, add, work).within(weight_.name);
    }
    if (r.plain_back) {
        NIBBLE_TRY(const cuda::BackPlan* plan, work.plans.of(n, weight_.rows, weight_.cols));
        NIBBLE_CHECK(cuda::back_weight_gradient(*plan, dy, x, gradient + weight_.at, add, work.workspace, step.stream)
                         .within(weight_.name));
        if (r.rank == 0 || !step_.recording) return Ok{};
        NIBBLE_TRY(const Used in, used(x, n, step));
        return directions_->observe(x, in.along, n, work);
    }
    if (weights_only(r)) {
        StoredInput in{.x = x};
        if (r.x.stored) {
            NIBBLE_TRY(in, stored_input(x, n, false, step));
        }
        NIBBLE_TRY(const cuda::BackScale scale,
                   back_scale(in.scale, {.other = step_.ends + 1, .constant = 1.0f}, step));
        NIBBLE_TRY(const cuda::BackPlan* plan, work.plans.of(n, weight_.rows, weight_.cols, scale.factor != nullptr));
        return cuda::back_weight_gradient(*plan, dy, in.x, gradient + weight_.at, add, work.workspace, step.stream,
                                          scale)
            .within(weight_.name);
    }
    if (!draws() && in_blocks(r.dy_t)) return block_gradient(dy, x, n, gradient, add, work).within(weight_.name);
    const cuda::CastSource of_rows{.x = dy, .rows = n, .cols = weight_.rows, .down = true};
    const CastRandom of_dy = column_random(column_role, weight_.rows);
    NIBBLE_TRY(const Quantized a, draws() ? eden_quantized(of_rows, of_dy, random(weight_signs), step_.tokens, step)
                                          : quantized(of_rows, r.dy_t, of_dy, step, given(DelayedUnits::gradients),
                                                      step_.recording ? seen(DelayedUnits::gradients) : nullptr));
    return values_weight_gradient(a, dy, x, n, gradient, add, work).within(weight_.name);
}

// a: dY along tokens.
Status RecipeProduct::values_weight_gradient(const Quantized& a, const std::byte* dy, const std::byte* x, int64_t n,
                                             float* gradient, bool add, TrainWork& work) const {
    const UnitRules& r = rules();
    DeviceStep& step = work.step;
    NIBBLE_TRY(const Used in, used(x, n, step));
    const CastRandom of_x = column_random(input_role, weight_.cols);
    const FactorWanted by_dy{.other = a.scale,
                             .constant = draws() ? 1.0f : 1.0f / (divisor_of(r.dy_t) * divisor_of(r.x_t))};
    NIBBLE_TRY(const Quantized b,
               draws() ? eden_quantized(in.source, of_x, random(weight_signs), step_.tokens, step)
                       : quantized(in.source, r.x_t, of_x, step, given(DelayedUnits::inputs), nullptr, by_dy));
    NIBBLE_TRY(const cuda::BackScale scale, back_scale(b, by_dy, step));
    const int64_t tokens = draws() ? eden_padded(n) : cast_padded(n, r.dy_t);
    NIBBLE_TRY(const cuda::BackPlan* plan, work.plans.of(tokens, weight_.rows, weight_.cols, scale.factor != nullptr));
    NIBBLE_CHECK(cuda::back_weight_gradient(*plan, a.values, b.values, gradient + weight_.at, add, work.workspace,
                                            step.stream, scale));
    if (!in.along) return Ok{};
    // + (dY^T A) P^T
    const int64_t pitch = directions_->pitch();
    NIBBLE_TRY(float* turned, step.scratch.allocate_array<float>(weight_.rows * pitch));
    NIBBLE_TRY(const cuda::BackPlan* term, work.plans.of(n, weight_.rows, pitch));
    NIBBLE_CHECK(cuda::back_weight_gradient(*term, dy, in.along, turned, false, work.workspace, step.stream));
    NIBBLE_CHECK(directions_->add_term(turned, weight_.rows, gradient + weight_.at, step.stream));
    return step_.recording ? directions_->observe(x, in.along, n, work) : Status(Ok{});
}

bool RecipeProduct::casts_both(const UnitRules& r) const {
    return !draws() && !r.plain_back && !weights_only(r) && cuda::casts_both(r.dy, r.dy_t);
}

Status RecipeProduct::backward(const std::byte* dy, const std::byte* x, int64_t n, std::byte* dx, float* gradient,
                               bool add, TrainWork& work, const Between& between) const {
    const UnitRules& r = rules();
    DeviceStep& step = work.step;
    const DeviceScope scope(step);
    NIBBLE_CHECK(look_at_rows(OperandSamples::gradients, dy, n, step.stream));
    if (back_codes(r)) {
        NIBBLE_TRY(const Codes codes, gradient_codes(dy, n, {true, true}, step));
        NIBBLE_CHECK(codes_input_gradient(codes, n, dx, work).within(weight_.name));
        NIBBLE_CHECK(made(between));
        return codes_weight_gradient(codes, x, n, gradient, add, work).within(weight_.name);
    }
    if (casts_both(r)) {
        NIBBLE_TRY(const QuantizedBoth q,
                   quantized_both({.x = dy, .rows = n, .cols = weight_.rows}, {r.dy, row_random()},
                                  {r.dy_t, column_random(column_role, weight_.rows)}, by_weight_back(), step));
        NIBBLE_CHECK(values_input_gradient(q.rows, n, dx, work).within(weight_.name));
        NIBBLE_CHECK(made(between));
        step.scratch.release(q.columns_end);
        return values_weight_gradient(q.columns, dy, x, n, gradient, add, work).within(weight_.name);
    }
    return DifferentiableProduct::backward(dy, x, n, dx, gradient, add, work, between);
}

// Both operands are in blocks along tokens: computes dY^T times x^T as an operand with one scale per row.
Status RecipeProduct::block_gradient(const std::byte* dy, const std::byte* x, int64_t n, float* gradient, bool add,
                                     TrainWork& work) const {
    const UnitRules& r = rules();
    DeviceStep& step = work.step;
    const DeviceScope scope(step);
    const int64_t rows = weight_.rows, cols = weight_.cols, tokens = cast_padded(n, r.x_t);
    NIBBLE_TRY(const Quantized a, quantized({.x = dy, .rows = n, .cols = rows, .down = true}, r.dy_t, {}, step));
    NIBBLE_TRY(const Quantized b, quantized({.x = x, .rows = n, .cols = cols, .down = true}, r.x_t, {}, step));
    // Rows beyond the last one are not initialized. Their results are not used.
    NIBBLE_TRY(std::byte * tiles, step.scratch.allocate(cuda::operand_bytes(cols, tokens)));
    NIBBLE_CHECK(cuda::make_operand(MatrixView{DType::bf16, cols, tokens, b.values}, cols, 0, tiles, step.stream));
    const cuda::ProductInput in{.x = a.values, .tokens = rows, .group_scales = a.scale};
    const cuda::Operand w{.rows = cols, .cols = tokens, .tiles = tiles, .tile_scales = b.scale, .tile_rows = 1};
    float* to = gradient + weight_.at;
    if (add) {
        NIBBLE_TRY(to, step.scratch.allocate_array<float>(rows * cols));
    }
    NIBBLE_CHECK(cuda::matmul(in, w, to, cols, false, step.stream));
    if (!add) return Ok{};
    return cuda::add_gradient(gradient + weight_.at, to, rows * cols, step.stream);
}

}  // namespace nibble
