#include "train/device/frozen_experts.h"

#include "base/checked.h"
#include "kernels/elementwise_cuda.h"
#include "kernels/moe_backward_cuda.h"

#include <algorithm>

namespace nibble {
namespace {

int64_t of_scratch(int64_t bytes) { return round_up(bytes, DeviceArena::alignment); }

cuda::ExpertsShape shape_of(int64_t experts, int64_t slots, int64_t rows, int64_t cols) {
    return {.experts = static_cast<int>(experts), .slots = slots, .rows = rows, .cols = cols};
}

}  // namespace

int64_t FrozenExperts::bytes() const {
    if (adapters_.none()) return weight_.bytes();
    return weight_.bytes() + of_scratch(experts() * cuda::operand_bytes(width(), cols())) +
           of_scratch(experts() * cuda::operand_bytes(rows(), width())) + of_scratch(2 * weight_.rows() * width());
}

Status FrozenExperts::load(const Checkpoint& checkpoint, DeviceArena& arena, const Stream& stream) {
    NIBBLE_CHECK(weight_.load(checkpoint, arena, stream).within(name_));
    if (adapters_.none()) return Ok{};
    const auto operands = [&](int64_t rows, int64_t cols) -> Result<cuda::Experts> {
        const int64_t bytes = experts() * cuda::operand_bytes(rows, cols);
        NIBBLE_TRY(std::byte * tiles, arena.allocate(bytes));
        NIBBLE_CHECK(fill_device(tiles, 0, bytes, stream));
        return cuda::Experts{.count = static_cast<int>(experts()),
                             .first = {.rows = rows, .cols = cols, .tiles = tiles}};
    };
    NIBBLE_TRY(a_, operands(width(), cols()));
    NIBBLE_TRY(b_, operands(rows(), width()));
    NIBBLE_TRY(b_rows_, arena.allocate(2 * weight_.rows() * width()));
    return Ok{};
}

DeviceExperts FrozenExperts::stand_for(DeviceExperts base) {
    base_ = std::move(base);
    DeviceExperts e{.rows = base_.rows, .cols = base_.cols, .experts = base_.experts, .other = this};
    for (const DeviceExperts::Part& part : base_.parts) e.parts.push_back({.name = part.name, .names = part.names});
    return e;
}

Status FrozenExperts::publish(const std::byte* published, const Stream& stream) const {
    if (adapters_.none()) return Ok{};
    NIBBLE_CHECK(cuda::spread_blocks(adapters_.blocks, published + 2 * adapters_.b, b_rows_, stream));
    const auto write = [&](const cuda::Operand& to, const std::byte* w) {
        return cuda::experts_operands(shape_of(experts(), 0, to.rows, to.cols), w, const_cast<std::byte*>(to.tiles),
                                      stream);
    };
    NIBBLE_CHECK(write(a_.first, published + 2 * adapters_.a).within(name_));
    return write(b_.first, b_rows_).within(name_);
}

// ---- Forward -------------------------------------------------------------------------------------------------------

// Returns bf16(x A^T) [slots, width].
Result<std::byte*> FrozenExperts::low(const DeviceExpertRows& in, DeviceStep& step) const {
    NIBBLE_TRY(std::byte * out, step.scratch.allocate(2 * in.n * width()));
    const DeviceScope scope(step);
    NIBBLE_TRY(float* unrounded, step.scratch.allocate_array<float>(in.n * width()));
    cuda::Experts a = a_;
    a.begin = in.begin;
    NIBBLE_CHECK(cuda::grouped_matmul({.x = in.x, .tokens = in.n, .rows = in.rows}, a, unrounded, width(), step.overlap,
                                      step.stream)
                     .within(name_));
    NIBBLE_CHECK(cuda::to_rows(unrounded, 0, in.n, width(), {out}, step.overlap, step.stream));
    return out;
}

Status FrozenExperts::forward(const DeviceExpertRows& in, float* y, DeviceStep& step) const {
    NIBBLE_CHECK(base_.forward(in, y, step));
    if (adapters_.none()) return Ok{};
    const DeviceScope scope(step);
    NIBBLE_TRY(const std::byte* narrow, low(in, step));
    NIBBLE_TRY(float* term, step.scratch.allocate_array<float>(in.n * rows()));
    cuda::Experts b = b_;
    b.begin = in.begin;
    NIBBLE_CHECK(
        cuda::grouped_matmul({.x = narrow, .tokens = in.n}, b, term, rows(), step.overlap, step.stream).within(name_));
    return cuda::add_scaled_rows(y, rows(), term, constants_.host_scale, in.n, rows(), step.stream);
}

int64_t FrozenExperts::scratch_bytes(int64_t slots) const {
    if (adapters_.none()) return base_.scratch_bytes(slots);
    return std::max(base_.scratch_bytes(slots),
                    of_scratch(2 * slots * width()) + of_scratch(4 * slots * std::max(rows(), width())));
}

// ---- Backward pass -------------------------------------------------------------------------------------------------

// Returns bf16(scale bf16(dy B)) [slots, width].
Result<std::byte*> FrozenExperts::low_gradient(const std::byte* dy, int64_t slots, const int32_t* begin,
                                               TrainWork& work) const {
    DeviceStep& step = work.step;
    NIBBLE_TRY(std::byte * out, step.scratch.allocate(2 * slots * width()));
    NIBBLE_CHECK(
        cuda::experts_input_gradient(shape_of(experts(), slots, rows(), width()), begin, dy, b_rows_, out, step.stream)
            .within(name_));
    if (constants_.host_scale != 1)
        NIBBLE_CHECK(cuda::scale_rows(out, slots * width(), constants_.host_scale, out, step.stream));
    return out;
}

Status FrozenExperts::input_gradient(const std::byte* dy, int64_t slots, const int32_t* begin, std::byte* dx,
                                     TrainWork& work) const {
    DeviceStep& step = work.step;
    const size_t parts = weight_.parts() / static_cast<size_t>(experts());
    for (int64_t first = 0; first < experts(); first += decoded()) {
        const DeviceScope scope(step);
        const int64_t count = std::min(decoded(), experts() - first);
        NIBBLE_TRY(
            const std::byte* w,
            weight_.values(step, static_cast<size_t>(first) * parts, static_cast<size_t>(count) * parts).within(name_));
        NIBBLE_CHECK(
            cuda::experts_input_gradient(shape_of(count, slots, rows(), cols()), begin + first, dy, w, dx, step.stream)
                .within(name_));
    }
    if (adapters_.none()) return Ok{};
    const DeviceScope scope(step);
    NIBBLE_TRY(const std::byte* d_low, low_gradient(dy, slots, begin, work));
    NIBBLE_TRY(std::byte * more, step.scratch.allocate(2 * slots * cols()));
    NIBBLE_CHECK(cuda::experts_input_gradient(shape_of(experts(), slots, width(), cols()), begin, d_low,
                                              work.published + 2 * adapters_.a, more, step.stream)
                     .within(name_));
    return cuda::sum_slots({.tokens = slots, .width = cols(), .more = {dx, more, nullptr}, .out = dx}, step.stream);
}

Status FrozenExperts::weight_gradient(const std::byte* dy, const std::byte* x, int64_t slots, const int32_t* begin,
                                      float* gradient, TrainWork& work) const {
    if (adapters_.none()) return Ok{};
    DeviceStep& step = work.step;
    const DeviceScope scope(step);
    NIBBLE_TRY(const std::byte* d_low, low_gradient(dy, slots, begin, work));
    NIBBLE_CHECK(cuda::experts_weight_gradient(shape_of(experts(), slots, width(), cols()), begin, d_low, x,
                                               gradient + adapters_.a, step.stream)
                     .within(name_));
    NIBBLE_TRY(const std::byte* narrow, low({.x = x, .n = slots, .begin = begin}, step));
    NIBBLE_TRY(float* db, step.scratch.allocate_array<float>(weight_.rows() * width()));
    NIBBLE_CHECK(
        cuda::experts_weight_gradient(shape_of(experts(), slots, rows(), width()), begin, dy, narrow, db, step.stream)
            .within(name_));
    return cuda::gather_blocks(adapters_.blocks, db, constants_.host_scale, gradient + adapters_.b, step.stream);
}

int64_t FrozenExperts::back_scratch_bytes(int64_t slots) const {
    const int64_t values = weight_.scratch_bytes() > 0 ? of_scratch(2 * decoded() * rows() * cols()) : 0;
    if (adapters_.none()) return values;
    const int64_t narrow = of_scratch(2 * slots * width());
    return std::max({values, narrow + of_scratch(2 * slots * cols()), 2 * narrow + of_scratch(4 * slots * width()),
                     2 * narrow + of_scratch(4 * weight_.rows() * width())});
}

}  // namespace nibble
