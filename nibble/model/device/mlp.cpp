#include "model/device/mlp.h"

#include <algorithm>

namespace nibble {

Result<std::unique_ptr<DeviceMlp>> DeviceMlp::make(const Mlp& mlp, DeviceWeights& weights) {
    auto m = std::make_unique<DeviceMlp>();
    m->config_ = mlp.config();
    NIBBLE_TRY(m->in_, weights.stack(mlp.in(), m->config_.gated && !m->scales_gate()));
    NIBBLE_TRY(m->out_, weights.linear(mlp.out()));
    return m;
}

Result<bool> DeviceMlp::fused(const DeviceStep& step) const {
    if (in_.parts.size() > 1 || config_.clamp || scales_gate()) return false;
    return in_.parts[0].activates(step.rows, config_.gated, step);
}

Result<cuda::RowsOut> DeviceMlp::mid_order(const DeviceStep& step) const {
    NIBBLE_TRY(const bool bf16, fused(step));  // such a product writes BF16, whatever layout the next product prefers
    if (bf16) return cuda::RowsOut{};
    NIBBLE_TRY(const InputPlan plan, out_.plan(step.rows, step, false));
    return plan.order;
}

Status DeviceMlp::forward(const DeviceInput& in, float* y, DeviceStep& step) const {
    const DeviceScope scope(step);
    NIBBLE_TRY(std::byte * mid, step.scratch.allocate(mid_bytes(step.rows)));
    NIBBLE_CHECK(forward_mid(in, mid, step));
    return forward_out(mid, y, step);
}

Status DeviceMlp::forward_mid(const DeviceInput& x, std::byte* mid, DeviceStep& step) const {
    const DeviceScope scope(step);
    const int64_t rows = step.rows;
    NIBBLE_TRY(const bool whole, fused(step));
    if (whole) return in_.parts[0].forward_activated(x, rows, config_.activation, mid, step);
    NIBBLE_TRY(cuda::RowsOut to, mid_order(step));
    to.data = mid;
    const ClampedGlu clamp = config_.clamp.value_or(ClampedGlu{});
    if (in_.rounds(rows) && to.tile_tokens == 0 && !scales_gate()) {
        NIBBLE_TRY(std::byte * in, step.scratch.allocate(2 * rows * in_.rows));
        NIBBLE_CHECK(in_.parts[0].forward_rounded(x, rows, in, step));
        return cuda::activate(config_.activation, config_.gated, in, rows, config_.intermediate, to, step.overlap,
                              step.stream, nullptr, clamp);
    }
    NIBBLE_TRY(float* in, step.scratch.allocate_array<float>(rows * in_.rows));
    NIBBLE_CHECK(in_.forward(x, rows, in, step));
    if (scales_gate())
        NIBBLE_CHECK(cuda::scale_columns(
            {.tokens = rows, .x = in, .stride = in_.rows, .parts = {{{config_.intermediate, config_.gate_scale}}}},
            step.overlap, step.stream));
    return cuda::activate(config_.activation, config_.gated, in, in_.rows, rows, config_.intermediate, to, step.overlap,
                          step.stream, in_.parts[0].interleaved_gate, clamp);
}

Status DeviceMlp::forward_out(const std::byte* mid, float* y, DeviceStep& step) const {
    NIBBLE_TRY(const cuda::RowsOut from, mid_order(step));
    return out_.forward({.x = mid, .ordered = !from.row_major()}, step.rows, y, out_.rows, step);
}

Status DeviceMlp::kernels(bool inside, const DeviceStep& step, std::vector<KernelUse>& uses) const {
    const size_t first = uses.size();
    NIBBLE_CHECK(in_.kernels(step.rows, step, uses));
    NIBBLE_TRY(const bool whole, fused(step));
    if (whole) uses[first].choice.why += "; computes the activation too";
    if (inside) note_norm_inside(uses, first);
    return out_.kernels(step.rows, step, uses);
}

int64_t DeviceMlp::scratch_bytes(int64_t rows) const {
    return rows * 4 * in_.rows + padded_rows(rows) * 2 * int64_t{config_.intermediate} +
           std::max(in_.scratch_bytes(rows), out_.scratch_bytes(rows)) + 4 * DeviceArena::alignment;
}

}  // namespace nibble
