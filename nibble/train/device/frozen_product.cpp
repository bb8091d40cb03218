#include "train/device/frozen_product.h"

#include "base/checked.h"
#include "kernels/lora_cuda.h"
#include "kernels/moe_backward_cuda.h"

#include <algorithm>

namespace nibble {
namespace {

int64_t in_scratch(int64_t bytes) { return round_up(bytes, DeviceArena::alignment); }

}  // namespace

int64_t FrozenProduct::bytes() const {
    if (adapters_.none()) return weight_.bytes();
    return weight_.bytes() + in_scratch(cuda::operand_bytes(width(), cols())) +
           in_scratch(cuda::operand_bytes(rows(), width())) + in_scratch(2 * rows() * width());
}

Status FrozenProduct::load(const Checkpoint& checkpoint, DeviceArena& arena, const Stream& stream) {
    NIBBLE_CHECK(weight_.load(checkpoint, arena, stream).within(name_));
    if (adapters_.none()) return Ok{};
    const auto operand = [&](const char* what, int64_t rows, int64_t cols) -> Result<DeviceLinear> {
        DeviceLinear l{.name = name_ + what, .rows = rows, .cols = cols};
        const int64_t bytes = cuda::operand_bytes(rows, cols);
        NIBBLE_TRY(std::byte * tiles, arena.allocate(bytes));
        NIBBLE_CHECK(fill_device(tiles, 0, bytes, stream));
        l.operand = {.rows = rows, .cols = cols, .tiles = tiles};
        return l;
    };
    NIBBLE_TRY(a_, operand(".lora_A", width(), cols()));
    NIBBLE_TRY(b_, operand(".lora_B", rows(), width()));
    NIBBLE_TRY(b_rows_, arena.allocate(2 * rows() * width()));
    return Ok{};
}

DeviceLinear FrozenProduct::stand_for(std::vector<DeviceLinear> base) {
    base_ = std::move(base);
    DeviceLinear l{.name = base_[0].name, .rows = rows(), .cols = cols(), .other = this};
    for (const DeviceLinear& part : base_) l.names.insert(l.names.end(), part.names.begin(), part.names.end());
    return l;
}

Status FrozenProduct::publish(const std::byte* published, const Stream& stream) const {
    if (adapters_.none()) return Ok{};
    NIBBLE_CHECK(cuda::spread_blocks(adapters_.blocks, published + 2 * adapters_.b, b_rows_, stream));
    const auto tiled = [&](const DeviceLinear& l, const std::byte* values) {
        return cuda::make_operand(MatrixView{DType::bf16, l.rows, l.cols, values}, l.rows, 0,
                                  const_cast<std::byte*>(l.operand.tiles), stream);
    };
    NIBBLE_CHECK(tiled(a_, published + 2 * adapters_.a));
    return tiled(b_, b_rows_);
}

// ---- Forward -------------------------------------------------------------------------------------------------------

// Returns bf16(x A^T) [n, width].
Result<std::byte*> FrozenProduct::low(const std::byte* x, int64_t n, DeviceStep& step) const {
    NIBBLE_TRY(std::byte * out, step.scratch.allocate(2 * n * width()));
    NIBBLE_CHECK(a_.forward_rounded({.x = x}, n, out, step));
    return out;
}

Status FrozenProduct::forward(const DeviceInput& from, int64_t n, float* y, int64_t y_stride, const float*,
                              DeviceStep& step) const {
    const int64_t stride = y_stride > 0 ? y_stride : rows();
    float* to = y;
    for (const DeviceLinear& part : base_) {
        NIBBLE_CHECK(part.forward({.x = from.x}, n, to, stride, step));
        to += part.rows;
    }
    if (adapters_.none()) return Ok{};
    const DeviceScope scope(step);
    NIBBLE_TRY(const std::byte* in, low(from.x, n, step));
    NIBBLE_TRY(float* term, step.scratch.allocate_array<float>(n * rows()));
    NIBBLE_CHECK(b_.forward({.x = in}, n, term, rows(), step));
    return cuda::add_scaled_rows(y, stride, term, constants_.host_scale, n, rows(), step.stream);
}

Status FrozenProduct::forward_rounded(const DeviceInput&, int64_t, std::byte*, const float*, DeviceStep&) const {
    return fail("{}: a product over a frozen weight gives FP32", name_);
}

Result<cuda::KernelChoice> FrozenProduct::describe(int64_t n) const {
    if (base_[0].w4a16) return cuda::KernelChoice{"w4a16", "weights in four bits that stay as they are"};
    return cuda::describe_matmul(base_[0].operand, n);
}

int64_t FrozenProduct::scratch_bytes(int64_t n) const {
    int64_t most = 0;
    for (const DeviceLinear& part : base_) most = std::max(most, part.scratch_bytes(n));
    if (adapters_.none()) return most;
    return std::max(most, in_scratch(2 * n * width()) + in_scratch(4 * n * std::max(rows(), width())));
}

// ---- Backward pass -------------------------------------------------------------------------------------------------

// Returns bf16(scale dy B) [n, width].
Result<std::byte*> FrozenProduct::low_gradient(const std::byte* dy, int64_t n, TrainWork& work) const {
    NIBBLE_TRY(std::byte * out, work.step.scratch.allocate(2 * n * width()));
    NIBBLE_TRY(const cuda::BackPlan* plan, work.plans.of(n, rows(), width(), true));
    NIBBLE_CHECK(cuda::back_input_gradient(*plan, dy, b_rows_, out, work.workspace, work.step.stream, scale()));
    return out;
}

Status FrozenProduct::input_gradient(const std::byte* dy, const std::byte*, int64_t n, std::byte* dx,
                                     TrainWork& work) const {
    DeviceStep& step = work.step;
    const DeviceScope scope(step);
    NIBBLE_TRY(const std::byte* w, weight_.values(step).within(name_));
    NIBBLE_TRY(const cuda::BackPlan* plan, work.plans.of(n, rows(), cols()));
    NIBBLE_CHECK(cuda::back_input_gradient(*plan, dy, w, dx, work.workspace, step.stream).within(name_));
    if (adapters_.none()) return Ok{};
    NIBBLE_TRY(const std::byte* d_low, low_gradient(dy, n, work));
    NIBBLE_TRY(std::byte * more, step.scratch.allocate(2 * n * cols()));
    const std::byte* a = work.published + 2 * adapters_.a;
    NIBBLE_TRY(plan, work.plans.of(n, width(), cols()));
    NIBBLE_CHECK(cuda::back_input_gradient(*plan, d_low, a, more, work.workspace, step.stream).within(name_));
    return cuda::sum_slots({.tokens = n, .width = cols(), .more = {dx, more, nullptr}, .out = dx}, step.stream);
}

Status FrozenProduct::weight_gradient(const std::byte* dy, const std::byte* x, int64_t n, float* gradient, bool add,
                                      TrainWork& work) const {
    if (adapters_.none()) return Ok{};
    if (add) return fail("{}: gradients of adapters cannot be accumulated", name_);
    DeviceStep& step = work.step;
    const DeviceScope scope(step);
    NIBBLE_TRY(const std::byte* d_low, low_gradient(dy, n, work));
    NIBBLE_TRY(const cuda::BackPlan* plan, work.plans.of(n, width(), cols()));
    NIBBLE_CHECK(cuda::back_weight_gradient(*plan, d_low, x, gradient + adapters_.a, false, work.workspace, step.stream)
                     .within(name_));
    NIBBLE_TRY(const std::byte* in, low(x, n, step));
    NIBBLE_TRY(float* db, step.scratch.allocate_array<float>(rows() * width()));
    NIBBLE_TRY(plan, work.plans.of(n, rows(), width()));
    NIBBLE_CHECK(cuda::back_weight_gradient(*plan, dy, in, db, false, work.workspace, step.stream).within(name_));
    return cuda::gather_blocks(adapters_.blocks, db, constants_.host_scale, gradient + adapters_.b, step.stream);
}

int64_t FrozenProduct::back_scratch_bytes(int64_t n) const {
    const int64_t decoded = in_scratch(weight_.scratch_bytes());
    if (adapters_.none()) return decoded;
    const int64_t narrow = in_scratch(2 * n * width());
    return std::max(decoded + narrow + in_scratch(2 * n * cols()),
                    2 * narrow + in_scratch(4 * n * width()) + in_scratch(4 * rows() * width()));
}

}  // namespace nibble
