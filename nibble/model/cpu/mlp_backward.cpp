#include "model/cpu/mlp.h"
#include "model/gradients.h"

namespace nibble {

Status Mlp::backward_rows(const float* x, const float* dy, int64_t n, float* dx, Workspace& work, Observer* observer,
                          GradientSink* sink, std::span<const int32_t> batch_rows, RouterWeights weights) const {
    const Arena::Scope scope(work.arena);
    const int64_t width = config_.intermediate, stride = in_.rows(), outputs = out_.rows;
    float* h = work.arena.floats(n * stride);
    float* a = work.arena.floats(n * width);
    float* da = work.arena.floats(n * width);
    NIBBLE_CHECK(in_.forward(x, n, h, work, nullptr));
    scale_gate(h, n, work.bf16(), work);
    activate(h, n, a, work);
    input_gradient(out_, a, dy, n, outputs, da, work);
    const float* g = dy;  // gradient of down's output
    if (weights.w) {
        float* weighted = work.arena.floats(n * outputs);
        work.parallel_rows(n, 3 * (width + outputs), [&](int64_t first, int64_t last) {
            for (int64_t i = first; i < last; ++i) {
                const float w = weights.w[i], *d = dy + i * outputs;
                weights.gradient[i] = work.gradient->dot(a + i * width, da + i * width, width);
                if (!out_.bias.empty()) weights.gradient[i] += work.gradient->dot(out_.bias.data(), d, outputs);
                for (int64_t j = 0; j < width; ++j) da[i * width + j] *= w;
                for (int64_t j = 0; j < outputs; ++j) weighted[i * outputs + j] = w * d[j];
            }
        });
        g = weighted;
    }
    NIBBLE_CHECK(report_gradient(out_, a, g, outputs, n, work, observer, sink, batch_rows));
    float* dh = work.arena.floats(n * stride);
    work.parallel_rows(n, 3 * (stride + width), [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i)
            work.gradient->activate(config_.activation, h + i * stride,
                                    config_.gated ? h + i * stride + width : nullptr, da + i * width, width,
                                    dh + i * stride, config_.gated ? dh + i * stride + width : nullptr);
    });
    scale_gate(dh, n, false, work);
    return linear_backward(in_, x, dh, n, dx, work, observer, sink, batch_rows);
}

Status Mlp::backward(const Batch& batch, const float* x, const float* dy, float* dx, Workspace& work,
                     Observer* observer, GradientSink* sink) const {
    return backward_rows(x, dy, batch.rows(), dx, work, observer, sink, {}, {});
}

}  // namespace nibble
