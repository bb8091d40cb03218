#include "model/cpu/moe.h"
#include "model/cpu/router.h"
#include "model/gradients.h"

#include <algorithm>

namespace nibble {

Status Moe::backward(const Batch& batch, const float* x, const float* dy, float* dx, Workspace& work,
                     Observer* observer, GradientSink* sink) const {
    const Arena::Scope scope(work.arena);
    const int64_t rows = batch.rows(), w = width(), k = config_.top_k, experts = config_.experts;
    NIBBLE_TRY(const Routing r, choose(batch, x, rows, work, nullptr));
    // The experts' input, the gradient of their weighted sum, and the gradient of their input (all in the latent space,
    // if there is one).
    const float *in = x, *d_acc = dy;
    float* d_in = dx;
    if (to_latent_) {
        float* latent = work.arena.floats(rows * w);
        float* acc = work.arena.floats(rows * w);
        float* d_latent = work.arena.floats(rows * w);
        NIBBLE_CHECK(to_latent_->forward(x, rows, latent, work, nullptr));
        NIBBLE_CHECK(run_experts(r, latent, acc, rows, work, nullptr));
        NIBBLE_CHECK(linear_backward(*from_latent_, acc, dy, rows, d_latent, work, observer, sink));
        in = latent;
        d_acc = d_latent;
        d_in = work.arena.floats(rows * w);
    }
    std::fill_n(d_in, rows * w, 0.0f);
    std::vector<float> d_weights(r.weights.size());
    for (int e = 0; e < config_.experts; ++e) {
        const int64_t begin = r.begin[e], n = r.begin[e + 1] - begin;
        if (n == 0) continue;
        const std::span<const int32_t> mine = std::span(r.rows).subspan(begin, n);
        const Arena::Scope inner(work.arena);
        float* xs = work.arena.floats(n * w);
        float* ds = work.arena.floats(n * w);
        float* d_xs = work.arena.floats(n * w);
        float* weight = work.arena.floats(n);
        float* d_weight = work.arena.floats(n);
        for (int64_t i = 0; i < n; ++i) {
            std::copy_n(in + mine[i] * w, w, xs + i * w);
            std::copy_n(d_acc + mine[i] * w, w, ds + i * w);
            weight[i] = r.weights[r.slots[begin + i]];
        }
        NIBBLE_CHECK(experts_[e]->backward_rows(xs, ds, n, d_xs, work, observer, sink, mine, {weight, d_weight}));
        for (int64_t i = 0; i < n; ++i) {
            d_weights[r.slots[begin + i]] = d_weight[i];
            float* to = d_in + mine[i] * w;
            for (int64_t j = 0; j < w; ++j) to[j] += d_xs[i * w + j];
        }
    }
    float* part = work.arena.floats(rows * hidden_);
    if (to_latent_) {
        NIBBLE_CHECK(linear_backward(*to_latent_, x, d_in, rows, dx, work, observer, sink));
    }
    if (shared_) {
        float* share = nullptr;
        float* d_share = nullptr;
        if (shared_gate_) {
            share = work.arena.floats(rows);
            d_share = work.arena.floats(rows);
            NIBBLE_CHECK(shared_weights(x, rows, share, work, nullptr));
        }
        NIBBLE_CHECK(shared_->backward_rows(x, dy, rows, part, work, observer, sink, {}, {share, d_share}));
        work.elementwise->add(part, rows * hidden_, false, dx);
        if (shared_gate_) {
            for (int64_t i = 0; i < rows; ++i) d_share[i] *= share[i] * (1.0f - share[i]);
            NIBBLE_CHECK(linear_backward(*shared_gate_, x, d_share, rows, part, work, observer, sink));
            work.elementwise->add(part, rows * hidden_, false, dx);
        }
    }
    float* d_logits = work.arena.floats(rows * experts);
    for (int64_t i = 0; i < rows; ++i)
        route_backward(config_, std::span(r.scores).subspan(i * experts, experts),
                       std::span(r.experts).subspan(i * k, k), std::span(d_weights).subspan(i * k, k),
                       {d_logits + i * experts, static_cast<size_t>(experts)});
    NIBBLE_CHECK(linear_backward(gate_, x, d_logits, rows, part, work, observer, sink));
    work.elementwise->add(part, rows * hidden_, false, dx);
    return Ok{};
}

}  // namespace nibble
