#include "model/device/runner.h"

#include <utility>

namespace nibble {

Result<cuda::AddNorm> queue_layers(std::span<const DeviceLayer> layers, const DeviceResidual& r,
                                   const DeviceFusedDecode* fused_decode, DeviceStep& step) {
    std::byte* other = r.other;
    cuda::AddNorm norm{
        .tokens = step.rows, .width = r.hidden, .h = r.h, .eps = r.eps, .centered = r.centered, .out = {r.x}};
    if (fused_decode && other && step.rows == 1 && !step.observer) {
        NIBBLE_CHECK(fused_decode->forward(norm.h, other, r.y, r.nonfinite, step));
        norm.update = r.y;
        norm.nonfinite = r.nonfinite + layers.size() - 1;
        return norm;
    }
    for (size_t i = 0; i < layers.size(); ++i) {
        const DeviceLayer& layer = layers[i];
        norm.weight = layer.norm;
        norm.bias = layer.norm_bias;
        NIBBLE_TRY(const InputPlan plan, layer.mixer->plan(step));
        DeviceInput in{.x = r.x};
        if (!layer.norm) {
            // The mixer reads the stream itself.
            norm.out = {};
            if (norm.update) NIBBLE_CHECK(cuda::add_norm(norm, step.overlap, step.stream));
            in.x = norm.h;
        } else if (other && norm_inside(i > 0 ? &layers[i - 1] : nullptr, layer, plan)) {
            in.norm = {norm.h, norm.update, norm.weight, norm.eps, other, norm.nonfinite, r.x};
            if (norm.update) std::swap(norm.h, other);
        } else {
            norm.out = plan.order;
            norm.out.data = r.x;
            in.ordered = !plan.order.row_major();
            NIBBLE_CHECK(cuda::add_norm(norm, step.overlap, step.stream));
        }
        NIBBLE_CHECK(layer.mixer->forward(in, r.y, step));
        norm.update = r.y;
        norm.post_norm = layer.post_norm, norm.post_bias = layer.post_bias;
        norm.update_scale = layer.config.residual_scale, norm.sum_scale = layer.output_scale;
        norm.nonfinite = r.nonfinite + i;
    }
    norm.weight = norm.bias = nullptr, norm.out = {};
    return norm;
}

}  // namespace nibble
