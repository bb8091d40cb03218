#include "model/device_mlp.h"

#include <algorithm>

namespace nibble {

Result<std::unique_ptr<DeviceMlp>> DeviceMlp::make(const Mlp& mlp, DeviceWeights& weights) {
    auto m = std::make_unique<DeviceMlp>();
    m->config_ = mlp.config();
    NIBBLE_TRY(m->in_, weights.stack(mlp.in(), m->config_.gated));
    NIBBLE_TRY(m->out_, weights.linear(mlp.out()));
    return m;
}

Status DeviceMlp::forward(const std::byte* x, float* y, DeviceStep& step) const {
    NIBBLE_TRY(const cuda::RowsOut as, order(step));
    return forward_rows(x, !as.row_major(), y, step);
}

Status DeviceMlp::forward_rows(const std::byte* x, bool ordered, float* y, DeviceStep& step) const {
    const DeviceScope scope(step);
    const int64_t rows = step.rows, width = config_.intermediate;
    NIBBLE_TRY(std::byte * mid, step.scratch.allocate(padded_rows(rows) * width * 2));
    NIBBLE_TRY(const bool fused, in_.parts[0].activates(rows, step));
    cuda::RowsOut to;  // one product with its activation ends in BF16, whatever the next wants
    if (!fused) {
        NIBBLE_TRY(to, out_.order(rows, step, false));
    }
    to.data = mid;
    if (fused) {
        NIBBLE_CHECK(in_.parts[0].forward_activated(x, rows, config_.activation, mid, step));
    } else {
        NIBBLE_TRY(float* in, step.scratch.allocate_array<float>(rows * in_.rows));
        NIBBLE_CHECK(in_.forward(x, rows, in, step, ordered));
        NIBBLE_CHECK(cuda::activate(config_.activation, config_.gated, in, in_.rows, rows, width, to, step.overlap,
                                    step.stream, in_.parts[0].by_turns));
    }
    return out_.forward(mid, rows, y, out_.rows, step, !to.row_major());
}

int64_t DeviceMlp::scratch_bytes(int64_t rows) const {
    return rows * 4 * in_.rows + padded_rows(rows) * 2 * int64_t{config_.intermediate} +
           std::max(in_.scratch_bytes(rows), out_.scratch_bytes(rows)) + 4 * DeviceArena::alignment;
}

}  // namespace nibble
