// The two products of the way back.
#include "kernels/elementwise_cuda.h"
#include "train/device/cast_operand.h"
#include "train/device/device_recipe.h"

#include <algorithm>

namespace nibble {

int64_t TrainProduct::back_scratch_bytes(int64_t n) const {
    const int64_t rows = weight_.rows, cols = weight_.cols;
    const int64_t of_used = split_size(n) + (early_.rank > 0 || draws() ? quantized_size(n, cols, early_.x) : 0);
    if (draws()) {
        const int64_t turned = directions_ ? in_arena(4 * rows * directions_->pitch()) : 0;
        return std::max(eden_size(n, rows), of_used + eden_size(rows, n) + eden_size(cols, n) + turned) + in_arena(4);
    }
    if (back_codes(early_)) return codes_back_size(n);
    int64_t input = quantized_size(n, rows, early_.dy) + in_arena(4);
    int64_t weight = of_used + quantized_size(rows, n, early_.dy_t) + quantized_size(cols, n, early_.x_t) + in_arena(4);
    if (directions_) weight += in_arena(4 * rows * directions_->pitch());
    if (in_blocks(early_.dy)) input += in_arena(4 * n * cols);
    if (in_blocks(early_.dy_t))
        weight += in_arena(cuda::operand_bytes(cols, cast_padded(n, early_.x_t))) + in_arena(4 * rows * cols);
    return std::max(input, weight);
}

Status TrainProduct::input_gradient(const std::byte* dy, const std::byte* x, int64_t n, std::byte* dx,
                                    TrainWork& work) const {
    const UnitRules& r = rules();
    DeviceStep& step = work.step;
    const DeviceScope scope(step);
    if (back_codes(r)) {
        NIBBLE_TRY(const Codes codes, gradient_codes(dy, n, {.rows = true}, step));
        return codes_input_gradient(codes, n, dx, work).within(weight_.name);
    }
    const int64_t padded = back_rows();
    CastRandom draws_of = random(row_role);
    draws_of.first_outer = step_.tokens;
    draws_of.outer_step = static_cast<uint64_t>((padded + 15) / 16);
    const cuda::CastSource from{.x = dy, .rows = n, .cols = weight_.rows};
    if (weights_only(r)) {
        NIBBLE_TRY(const cuda::BackScale scale,
                   back_scale(step_.ends + 1, one_copy() ? scales_ : back_scales_, 1.0f / divisor_of(r.w_back), step));
        NIBBLE_TRY(const cuda::BackPlan* plan, work.plans.of(n, padded, weight_.cols, true));
        NIBBLE_CHECK(
            cuda::back_input_gradient(*plan, dy, back_, dx, work.workspace, step.stream, scale).within(weight_.name));
        if (!r.x.stored || !step_.stored) return Ok{};
        return cuda::clear_clipped(x, n * weight_.cols, given(DelayedUnits::inputs), dx, step.stream);
    }
    NIBBLE_TRY(const Quantized q, draws() ? eden_quantized(from, draws_of, random(input_signs), 0, step)
                                          : quantized(from, r.dy, draws_of, step, given(DelayedUnits::gradients),
                                                      step_.recording ? seen(DelayedUnits::gradients) : nullptr));
    if (!draws() && in_blocks(r.dy)) {
        const cuda::ProductInput in{.x = q.values, .tokens = n, .group_scales = q.scale};
        const cuda::Operand w{.rows = weight_.cols, .cols = padded, .tiles = back_, .tile_scales = back_scales_};
        if (cuda::has_rounded_product(w, n))
            return cuda::rounded_product(in, w, dx, weight_.cols, false, step.stream).within(weight_.name);
        NIBBLE_TRY(float* exact, step.scratch.allocate_array<float>(n * weight_.cols));
        NIBBLE_CHECK(cuda::product(in, w, exact, weight_.cols, false, step.stream).within(weight_.name));
        return cuda::to_rows(exact, 0, n, weight_.cols, {dx}, false, step.stream).within(weight_.name);
    }
    const float constant = draws() ? 1.0f : 1.0f / (divisor_of(r.dy) * divisor_of(r.w_back));
    NIBBLE_TRY(const cuda::BackScale scale, back_scale(q.scale, one_copy() ? scales_ : back_scales_, constant, step));
    NIBBLE_TRY(const cuda::BackPlan* plan, work.plans.of(n, padded, weight_.cols, scale.factor != nullptr));
    return cuda::back_input_gradient(*plan, q.values, back_, dx, work.workspace, step.stream, scale)
        .within(weight_.name);
}

// What multiplies a sum of the way back; a null: nothing does.
Result<cuda::BackScale> TrainProduct::back_scale(const float* a, const float* b, float constant,
                                                 DeviceStep& step) const {
    if (!a) return cuda::BackScale{};
    NIBBLE_TRY(float* factor, step.scratch.allocate_array<float>(1));
    NIBBLE_CHECK(cuda::product_scales(a, false, b, constant, factor, 1, step.stream));
    return cuda::BackScale{factor, step_.ends};
}

// Of a term along directions or MS-EDEN the numbers that the forward product multiplied, where they are NVFP4.
Result<TrainProduct::Used> TrainProduct::used(const std::byte* x, int64_t n, DeviceStep& step) const {
    const UnitRules& r = rules();
    Used u{.source = {.x = x, .rows = n, .cols = weight_.cols, .down = true}};
    if (r.rank == 0 && !draws()) return u;
    if (r.rank > 0) {
        NIBBLE_TRY(std::byte * along, step.scratch.allocate(2 * n * directions_->pitch()));
        NIBBLE_TRY(std::byte * rest, step.scratch.allocate(2 * n * weight_.cols));
        NIBBLE_CHECK(directions_->split(x, n, along, rest, step.stream));
        u.along = along, u.source.x = rest;
    }
    if (r.x.format != CastFormat::nvfp4) return u;
    NIBBLE_TRY(const Quantized q, quantized({.x = u.source.x, .rows = n, .cols = weight_.cols}, r.x, {}, step));
    u.source.x = q.values;
    u.source.stride = cast_padded(weight_.cols, r.x);
    u.source.scale = q.scale;
    u.source.scale_by_row = r.x.row_scaled;
    u.source.factor = 1.0f / divisor_of(r.x);
    return u;
}

Status TrainProduct::weight_gradient(const std::byte* dy, const std::byte* x, int64_t n, float* gradient, bool add,
                                     TrainWork& work) const {
    const UnitRules& r = rules();
    DeviceStep& step = work.step;
    const DeviceScope scope(step);
    if (back_codes(r)) {
        NIBBLE_TRY(const Codes codes, gradient_codes(dy, n, {.columns = true}, step));
        return codes_weight_gradient(codes, x, n, gradient, add, work).within(weight_.name);
    }
    if (weights_only(r)) {
        StoredInput in{.x = x};
        if (r.x.stored) {
            NIBBLE_TRY(in, stored_input(x, n, false, step));
        }
        NIBBLE_TRY(const cuda::BackScale scale, back_scale(in.scale, step_.ends + 1, 1.0f, step));
        NIBBLE_TRY(const cuda::BackPlan* plan, work.plans.of(n, weight_.rows, weight_.cols, scale.factor != nullptr));
        return cuda::back_weight_gradient(*plan, dy, in.x, gradient + weight_.at, add, work.workspace, step.stream,
                                          scale)
            .within(weight_.name);
    }
    if (!draws() && in_blocks(r.dy_t)) return block_gradient(dy, x, n, gradient, add, work).within(weight_.name);
    CastRandom of_dy = random(column_role), of_x = random(input_role);
    of_dy.first_group = of_x.first_group = step_.groups;
    of_dy.group_step = static_cast<uint64_t>(weight_.rows);
    of_x.group_step = static_cast<uint64_t>(weight_.cols);
    NIBBLE_TRY(const Used in, used(x, n, step));
    const cuda::CastSource of_rows{.x = dy, .rows = n, .cols = weight_.rows, .down = true};
    Quantized a, b;
    if (draws()) {
        const CastRandom signs = random(weight_signs);
        NIBBLE_TRY(a, eden_quantized(of_rows, of_dy, signs, step_.tokens, step));
        NIBBLE_TRY(b, eden_quantized(in.source, of_x, signs, step_.tokens, step));
    } else {
        float* const to = step_.recording ? seen(DelayedUnits::gradients) : nullptr;
        NIBBLE_TRY(a, quantized(of_rows, r.dy_t, of_dy, step, given(DelayedUnits::gradients), to));
        NIBBLE_TRY(b, quantized(in.source, r.x_t, of_x, step, given(DelayedUnits::inputs)));
    }
    const float constant = draws() ? 1.0f : 1.0f / (divisor_of(r.dy_t) * divisor_of(r.x_t));
    NIBBLE_TRY(const cuda::BackScale scale, back_scale(a.scale, b.scale, constant, step));
    const int64_t tokens = draws() ? eden_padded(n) : cast_padded(n, r.dy_t);
    NIBBLE_TRY(const cuda::BackPlan* plan, work.plans.of(tokens, weight_.rows, weight_.cols, scale.factor != nullptr));
    NIBBLE_CHECK(cuda::back_weight_gradient(*plan, a.values, b.values, gradient + weight_.at, add, work.workspace,
                                            step.stream, scale)
                     .within(weight_.name));
    if (!in.along) return Ok{};
    // + (dY^T A) P^T
    const int64_t pitch = directions_->pitch();
    NIBBLE_TRY(float* turned, step.scratch.allocate_array<float>(weight_.rows * pitch));
    NIBBLE_TRY(const cuda::BackPlan* term, work.plans.of(n, weight_.rows, pitch));
    NIBBLE_CHECK(cuda::back_weight_gradient(*term, dy, in.along, turned, false, work.workspace, step.stream)
                     .within(weight_.name));
    NIBBLE_CHECK(directions_->add_term(turned, weight_.rows, gradient + weight_.at, step.stream));
    return step_.recording ? directions_->observe(x, in.along, n, work) : Status(Ok{});
}

// Both operands in blocks along tokens: a product of dY^T by x^T as an operand with a scale of each row.
Status TrainProduct::block_gradient(const std::byte* dy, const std::byte* x, int64_t n, float* gradient, bool add,
                                    TrainWork& work) const {
    const UnitRules& r = rules();
    DeviceStep& step = work.step;
    const DeviceScope scope(step);
    const int64_t rows = weight_.rows, cols = weight_.cols, tokens = cast_padded(n, r.x_t);
    NIBBLE_TRY(const Quantized a, quantized({.x = dy, .rows = n, .cols = rows, .down = true}, r.dy_t, {}, step));
    NIBBLE_TRY(const Quantized b, quantized({.x = x, .rows = n, .cols = cols, .down = true}, r.x_t, {}, step));
    // Rows behind the last one stay as they are: nobody reads what comes of them.
    NIBBLE_TRY(std::byte * tiles, step.scratch.allocate(cuda::operand_bytes(cols, tokens)));
    NIBBLE_CHECK(cuda::make_operand(MatrixView{DType::bf16, cols, tokens, b.values}, cols, 0, tiles, step.stream));
    const cuda::ProductInput in{.x = a.values, .tokens = rows, .group_scales = a.scale};
    const cuda::Operand w{.rows = cols, .cols = tokens, .tiles = tiles, .tile_scales = b.scale, .tile_rows = 1};
    float* to = gradient + weight_.at;
    if (add) {
        NIBBLE_TRY(to, step.scratch.allocate_array<float>(rows * cols));
    }
    NIBBLE_CHECK(cuda::product(in, w, to, cols, false, step.stream));
    if (!add) return Ok{};
    return cuda::add_gradient(gradient + weight_.at, to, rows * cols, step.stream);
}

}  // namespace nibble
