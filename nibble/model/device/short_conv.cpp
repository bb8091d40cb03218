#include "model/device/short_conv.h"

#include <algorithm>

namespace nibble {

Result<std::unique_ptr<DeviceMixer>> DeviceShortConv::make(const BlockConfig& block, const ShortConv& conv,
                                                           DeviceWeights& weights) {
    auto s = std::make_unique<DeviceShortConv>();
    s->index_ = block.index;
    s->taps_ = conv.config().taps;
    NIBBLE_TRY(s->in_proj_, weights.linear(conv.in_proj()));
    NIBBLE_TRY(s->out_proj_, weights.linear(conv.out_proj()));
    NIBBLE_TRY(s->weight_, weights.vector(conv.convolution().weight()));
    if (conv.config().bias) {
        NIBBLE_TRY(s->bias_, weights.vector(conv.convolution().bias()));
    }
    return std::unique_ptr<DeviceMixer>(std::move(s));
}

// The convolution needs rows in order, so only one row uses the product's layout.
Result<InputPlan> DeviceShortConv::plan(const DeviceStep& step) const {
    if (step.rows != 1) return InputPlan{};
    NIBBLE_TRY(const InputPlan product, in_proj_.plan(1, step, true));
    return InputPlan{.inside = product.inside};
}

Status DeviceShortConv::forward(const DeviceInput& in, float* y, DeviceStep& step) const {
    const DeviceScope scope(step);
    const int64_t rows = step.rows, width = out_proj_.cols;
    NIBBLE_TRY(float* projected, step.scratch.allocate_array<float>(rows * in_proj_.rows));
    NIBBLE_TRY(std::byte * mixed, step.scratch.allocate(rows * width * 2));
    NIBBLE_CHECK(in_proj_.forward(in, rows, projected, in_proj_.rows, step));
    NIBBLE_CHECK(cuda::short_conv_step({.width = width,
                                        .taps = taps_,
                                        .tokens = rows,
                                        .segments = static_cast<int>(step.segments),
                                        .longest = step.longest,
                                        .list = step.blocks[size_t(index_)].segments,
                                        .projected = projected,
                                        .weight = weight_,
                                        .bias = bias_,
                                        .out = mixed},
                                       step.overlap, step.stream));
    return out_proj_.forward({.x = mixed}, rows, y, out_proj_.rows, step);
}

Status DeviceShortConv::kernels(bool inside, const DeviceStep& step, std::vector<KernelUse>& uses) const {
    const size_t first = uses.size();
    NIBBLE_CHECK(in_proj_.kernels(step.rows, step, uses));
    if (inside) note_norm_inside(uses, first);
    return out_proj_.kernels(step.rows, step, uses);
}

int64_t DeviceShortConv::scratch_bytes(int64_t rows) const {
    return rows * (4 * in_proj_.rows + 2 * out_proj_.cols) +
           std::max(in_proj_.scratch_bytes(rows), out_proj_.scratch_bytes(rows)) + 4 * DeviceArena::alignment;
}

}  // namespace nibble
