#include "kernels/ssm_backward.h"
#include "model/cpu/mamba.h"
#include "model/gradients.h"

#include <algorithm>
#include <cmath>

namespace nibble {

// The backward pass of dt = max(softplus(u + dt_bias), dt_min) and decay = exp(a dt). Writes the gradient of u to
// d_projected. The gradients of dt_bias and A_log are sums over the rows.
Status Mamba::step_backward(const Inputs& in, int64_t rows, float* d_dt, float* d_decay, float* d_projected,
                            Workspace& work, GradientSink* sink) const {
    const int64_t heads = config_.heads, stride = in_proj_.rows, at = inner() + channels();
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t h = 0; h < heads; ++h) {
            float &dt_gradient = d_dt[i * heads + h], &a_gradient = d_decay[i * heads + h];
            const float dt = in.dt[i * heads + h], through = a_gradient * in.decay[i * heads + h];
            const double u = in.projected[i * stride + at + h] + dt_bias_[h];
            const bool clamped = dt <= config_.dt_min && config_.dt_min > 0.0f;
            const double slope = clamped ? 0.0 : 1.0 / (1.0 + std::exp(-u));
            dt_gradient = static_cast<float>((dt_gradient + through * a_[h]) * slope);
            a_gradient = through * dt * a_[h];  // d decay / d A_log = decay dt a
            d_projected[i * stride + at + h] = dt_gradient;
        }
    if (!sink) return Ok{};
    std::vector<float> sums(static_cast<size_t>(heads));
    column_sums(d_dt, rows, heads, heads, sums.data(), work);
    NIBBLE_CHECK(sink->add(prefix_ + ".dt_bias", sums.data(), heads, 1));
    column_sums(d_decay, rows, heads, heads, sums.data(), work);
    return sink->add(prefix_ + ".A_log", sums.data(), heads, 1);
}

Status Mamba::scan_backward(const Batch& batch, const Inputs& in, const float* dy, float* d_xbc, float* d_projected,
                            Workspace& work, GradientSink* sink) const {
    const int64_t rows = batch.rows(), heads = config_.heads, bc = int64_t{config_.groups} * config_.state;
    std::vector<float> d_dt(static_cast<size_t>(rows * heads)), d_decay(d_dt.size());
    std::vector<float> d_skip(static_cast<size_t>(heads)), sum(d_skip.size());
    for (size_t i = 0; i < batch.segments().size(); ++i) {
        const int64_t row = batch.row(i);
        const SsmScan s = scan(in, row, static_cast<int64_t>(batch.segments()[i].tokens.size()), nullptr);
        float* d = d_xbc + row * channels();
        ssm_scan_backward(s,
                          {.dy = dy + row * inner(),
                           .dx = d,
                           .db = d + inner(),
                           .dc = d + inner() + bc,
                           .d_decay = d_decay.data() + row * heads,
                           .d_dt = d_dt.data() + row * heads,
                           .dd = d_skip.data()},
                          *work.pool);
        for (int64_t h = 0; h < heads; ++h) sum[h] += d_skip[h];
    }
    if (sink) {
        NIBBLE_CHECK(sink->add(prefix_ + ".D", sum.data(), heads, 1));
    }
    return step_backward(in, rows, d_dt.data(), d_decay.data(), d_projected, work, sink);
}

Status Mamba::gate_backward(const Inputs& in, const float* y, const float* between, const float* d_out, int64_t rows,
                            float* d_y, float* d_projected, Workspace& work, GradientSink* sink) const {
    using enum MambaConfig::Norm;
    const int64_t n = inner(), stride = in_proj_.rows;
    const bool last = config_.norm == after_gate;  // the norm
    float* d_between = config_.norm == none ? nullptr : work.arena.floats(rows * n);
    const auto norm = [&](const float* x, const float* d, float* dx) {
        return norm_backward({.x = x, .stride = n, .rows = rows, .groups = config_.groups, .eps = eps_}, norm_, d, dx,
                             n, false, prefix_ + ".norm.weight", work, sink);
    };
    if (last) NIBBLE_CHECK(norm(between, d_out, d_between));
    const bool first = config_.norm == before_gate;
    const float *up = first ? between : y, *d = last ? d_between : d_out;
    float* d_up = first ? d_between : d_y;
    work.parallel_rows(rows, 6 * n, [&](int64_t from, int64_t to) {
        for (int64_t i = from; i < to; ++i)
            work.gradient->activate(Activation::silu, in.projected + i * stride, up + i * n, d + i * n, n,
                                    d_projected + i * stride, d_up + i * n);
    });
    return first ? norm(y, d_between, d_y) : Status(Ok{});
}

Status Mamba::backward(const Batch& batch, const float* x, const float* dy, float* dx, Workspace& work,
                       Observer* observer, GradientSink* sink) const {
    const Arena::Scope scope(work.arena);
    const int64_t rows = batch.rows(), n = inner(), stride = in_proj_.rows, width = channels();
    NIBBLE_TRY(const Inputs in, inputs(batch, x, work, nullptr));
    float* y = work.arena.floats(rows * n);
    run_scan(batch, in, y, work);
    float* between = work.arena.floats(rows * n);
    const float* out = gate(in.projected, y, rows, between, work.arena.floats(rows * n), work);

    float* d_out = work.arena.floats(rows * n);
    float* d_y = work.arena.floats(rows * n);
    float* d_projected = work.arena.floats(rows * stride);
    NIBBLE_CHECK(linear_backward(out_proj_, out, dy, rows, d_out, work, observer, sink));
    NIBBLE_CHECK(gate_backward(in, y, between, d_out, rows, d_y, d_projected, work, sink));
    float* d_xbc = work.arena.floats(rows * width);
    NIBBLE_CHECK(scan_backward(batch, in, d_y, d_xbc, d_projected, work, sink));
    work.parallel_rows(rows, 4 * width, [&](int64_t first, int64_t last) {
        work.gradient->activate(Activation::silu, in.raw + first * width, nullptr, d_xbc + first * width,
                                (last - first) * width, d_xbc + first * width, nullptr);
    });
    NIBBLE_CHECK(conv_.backward(batch, in.projected + n, stride, d_xbc, d_projected + n, work, sink));
    scale(d_projected, rows, false, work);
    return linear_backward(in_proj_, x, d_projected, rows, dx, work, observer, sink);
}

}  // namespace nibble
