#include "model/cpu/short_conv.h"

#include "model/gradients.h"

namespace nibble {
namespace {

// y = a * b
void multiply(const float* a, const float* b, int64_t n, float* y) {
    for (int64_t i = 0; i < n; ++i) y[i] = a[i] * b[i];
}

}  // namespace

Result<std::unique_ptr<Mixer>> load_mixer(const ModelConfig& model, const BlockConfig& block,
                                          const ShortConvConfig& config, WeightSource& weights) {
    return ShortConv::load(model, block, config, weights);
}

Result<std::unique_ptr<Mixer>> ShortConv::load(const ModelConfig& model, const BlockConfig& block,
                                               const ShortConvConfig& c, WeightSource& weights) {
    auto s = std::make_unique<ShortConv>();
    const int64_t n = model.hidden;
    s->hidden_ = n;
    s->index_ = block.index;
    s->config_ = c;
    NIBBLE_TRY(s->in_proj_, weights.linear(block.name("in_proj"), 3 * n, n, c.bias));
    NIBBLE_TRY(s->out_proj_, weights.linear(block.name("out_proj"), n, n, c.bias));
    NIBBLE_TRY(s->conv_, Convolution::load(block.name("conv"), n, c.taps, c.bias, weights));
    return std::unique_ptr<Mixer>(std::move(s));
}

Result<ShortConv::Inputs> ShortConv::inputs(const Batch& batch, const float* x, Workspace& work,
                                            Observer* observer) const {
    const int64_t rows = batch.rows(), n = hidden_;
    const Inputs in{.projected = work.arena.floats(rows * 3 * n),
                    .product = work.arena.floats(rows * n),
                    .convolved = work.arena.floats(rows * n),
                    .gated = work.arena.floats(rows * n)};
    NIBBLE_CHECK(in_proj_.forward(x, rows, in.projected, work, observer));
    work.parallel_rows(rows, 3 * n, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
            const float* row = in.projected + i * 3 * n;
            multiply(row, row + 2 * n, n, in.product + i * n);
            if (work.bf16()) work.elementwise->round_bf16(in.product + i * n, n);
        }
    });
    conv_.forward(batch, in.product, n, index_, in.convolved, work);
    work.parallel_rows(rows, 3 * n, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
            if (work.bf16()) work.elementwise->round_bf16(in.convolved + i * n, n);
            multiply(in.projected + i * 3 * n + n, in.convolved + i * n, n, in.gated + i * n);
            if (work.bf16()) work.elementwise->round_bf16(in.gated + i * n, n);
        }
    });
    return in;
}

Status ShortConv::forward(const Batch& batch, const float* x, float* y, Workspace& work, Observer* observer) const {
    const Arena::Scope scope(work.arena);
    NIBBLE_TRY(const Inputs in, inputs(batch, x, work, observer));
    return out_proj_.forward(in.gated, batch.rows(), y, work, observer);
}

Status ShortConv::backward(const Batch& batch, const float* x, const float* dy, float* dx, Workspace& work,
                           Observer* observer, GradientSink* sink) const {
    const Arena::Scope scope(work.arena);
    const int64_t rows = batch.rows(), n = hidden_;
    NIBBLE_TRY(const Inputs in, inputs(batch, x, work, nullptr));
    float* d_gated = work.arena.floats(rows * n);
    float* d_convolved = work.arena.floats(rows * n);
    float* d_product = work.arena.floats(rows * n);
    float* d_projected = work.arena.floats(rows * 3 * n);
    NIBBLE_CHECK(linear_backward(out_proj_, in.gated, dy, rows, d_gated, work, observer, sink));
    work.parallel_rows(rows, 4 * n, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
            const float* d = d_gated + i * n;
            multiply(d, in.convolved + i * n, n, d_projected + i * 3 * n + n);
            multiply(d, in.projected + i * 3 * n + n, n, d_convolved + i * n);
        }
    });
    NIBBLE_CHECK(conv_.backward(batch, in.product, n, d_convolved, d_product, work, sink));
    work.parallel_rows(rows, 4 * n, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
            const float *row = in.projected + i * 3 * n, *d = d_product + i * n;
            multiply(d, row + 2 * n, n, d_projected + i * 3 * n);
            multiply(d, row, n, d_projected + i * 3 * n + 2 * n);
        }
    });
    return linear_backward(in_proj_, x, d_projected, rows, dx, work, observer, sink);
}

}  // namespace nibble
