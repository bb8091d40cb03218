#include "kernels/delta_rule_backward.h"
#include "kernels/exp.h"
#include "model/cpu/gated_delta.h"
#include "model/gradients.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace nibble {

// Holds the gradients of y and of the inputs of the rule, with the shapes of Inputs.
struct GatedDelta::RuleGradients {
    const float* dy;
    float *q, *k;  // [rows, keys]
    float* qkv;    // [rows, channels]: the columns of v are written
    float* beta;   // [rows, value_heads]
    float* decay;  // [rows, decays]
};

// Value heads of a key head add to the same q and k, so they run one after the other.
void GatedDelta::rule_backward(const Batch& batch, const Inputs& in, const RuleGradients& d, Workspace& work) const {
    const int64_t keys = config_.keys(), heads = config_.value_heads, per_key = config_.values_per_key();
    const int64_t decays = config_.decays();
    std::fill_n(d.q, batch.rows() * keys, 0.0f);
    std::fill_n(d.k, batch.rows() * keys, 0.0f);
    const auto segments = std::ssize(batch.segments());
    work.pool->parallel_for(segments * config_.key_heads, [&](int64_t task) {
        const auto segment = static_cast<size_t>(task / config_.key_heads);
        const int64_t row = batch.row(segment), first = task % config_.key_heads * per_key;
        const auto tokens = static_cast<int64_t>(batch.segments()[segment].tokens.size());
        for (int64_t h = first; h < first + per_key; ++h) {
            const DeltaHead head = this->head(in, row, tokens, h, nullptr, nullptr);
            const int64_t key = row * keys + h / per_key * config_.key_dim, value = h * config_.value_dim;
            delta_rule_backward(head, {.dy = d.dy + row * config_.inner() + value,
                                       .dq = d.q + key,
                                       .dk = d.k + key,
                                       .dv = d.qkv + row * config_.channels() + 2 * keys + value,
                                       .d_decay = d.decay + row * decays + h * (decays / heads),
                                       .d_beta = d.beta + row * heads + h});
        }
    });
}

// Computes the gradients of b, a, dt_bias and A_log from those of beta = sigmoid(b) and
// decay = exp(a_ softplus(a + dt_bias)).
Status GatedDelta::gates_backward(const Inputs& in, int64_t rows, const RuleGradients& d, float* d_ba, Workspace& work,
                                  GradientSink* sink) const {
    const int64_t heads = config_.value_heads, decays = config_.decays(), stride = gate_columns();
    std::vector<float> of_log(static_cast<size_t>(rows * decays));
    for (int64_t i = 0; i < rows; ++i) {
        for (int64_t h = 0; h < heads; ++h) {
            const float beta = in.beta[i * heads + h];
            d_ba[i * stride + h] = d.beta[i * heads + h] * beta * (1.0f - beta);
        }
        for (int64_t c = 0; c < decays; ++c) {
            const int64_t at = i * decays + c, a = i * stride + heads + c;
            const double x = double{in.ba[a]} + dt_bias_[c];
            const double step = x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
            const double through = double{d.decay[at]} * in.decay[at] * a_[c * heads / decays];
            d_ba[a] = static_cast<float>(through / (1.0 + std::exp(-x)));
            of_log[static_cast<size_t>(at)] = static_cast<float>(through * step);
        }
    }
    if (!sink) return Ok{};
    std::vector<float> sums(static_cast<size_t>(decays));
    column_sums(d_ba + heads, rows, decays, stride, sums.data(), work);
    NIBBLE_CHECK(sink->add(prefix_ + ".dt_bias", sums.data(), decays, 1));
    column_sums(of_log.data(), rows, decays, decays, sums.data(), work);
    for (int64_t h = 0; h < heads; ++h)
        sums[h] = std::accumulate(sums.begin() + h * decays / heads, sums.begin() + (h + 1) * decays / heads, 0.0f);
    return sink->add(prefix_ + ".A_log", sums.data(), heads, 1);
}

void GatedDelta::gate_backward(const Inputs& in, const float* normed, const float* d_gated, int64_t rows, float* d_gate,
                               float* d_normed, Workspace& work) const {
    const int64_t inner = config_.inner();
    work.parallel_rows(rows, 6 * inner, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
            const int64_t at = i * inner;
            const float* z = in.gate + i * in.gate_stride;
            float* dz = d_gate + i * in.gate_stride;
            if (!config_.by_channel) {
                work.gradient->activate(Activation::silu, z, normed + at, d_gated + at, inner, dz, d_normed + at);
                continue;
            }
            for (int64_t j = 0; j < inner; ++j) {
                const float s = 1.0f / (1.0f + exp_f32(-z[j])), d = d_gated[at + j] * s;
                dz[j] = d * normed[at + j] * (1.0f - s);
                d_normed[at + j] = d;
            }
        }
    });
}

Status GatedDelta::projections_backward(const Inputs& in, const float* x, const ProjectionGradients& d, int64_t rows,
                                        float* dx, Workspace& work, Observer* observer, GradientSink* sink) const {
    const float *d_projected = d.projected, *d_ba = d.ba;
    if (config_.by_channel) {
        const int64_t heads = config_.value_heads, keys = config_.keys(), first = config_.channels();
        const int64_t f = config_.key_dim, g = config_.value_dim;
        float* d_decays = work.arena.floats(rows * keys);
        float* d_f = work.arena.floats(rows * f);
        float* d_g = work.arena.floats(rows * g);
        for (int64_t i = 0; i < rows; ++i) std::copy_n(d_ba + i * gate_columns() + heads, keys, d_decays + i * keys);
        NIBBLE_CHECK(
            linear_backward(*decay_out_, columns(in, rows, first, f, work), d_decays, rows, d_f, work, observer, sink));
        NIBBLE_CHECK(linear_backward(*gate_out_, columns(in, rows, first + f, g, work), d.gate, rows, d_g, work,
                                     observer, sink));
        for (int64_t i = 0; i < rows; ++i) {
            float* row = std::copy_n(d_f + i * f, f, d.projected + i * width() + first);
            std::copy_n(d_ba + i * gate_columns(), heads, std::copy_n(d_g + i * g, g, row));
        }
        return linear_backward(in_, x, d_projected, rows, dx, work, observer, sink);
    }
    if (config_.by_key_head) {
        float* wide = work.arena.floats(rows * width());
        float* narrow = work.arena.floats(rows * 2 * config_.value_heads);
        regroup(d_projected, wide_parts(), rows, true, wide, work);
        regroup(d_ba, gate_parts(), rows, true, narrow, work);
        d_projected = wide, d_ba = narrow;
    }
    const int64_t hidden = out_.rows;
    float* part = work.arena.floats(rows * hidden);
    NIBBLE_CHECK(linear_backward(in_, x, d_projected, rows, dx, work, observer, sink));
    NIBBLE_CHECK(linear_backward(gates_, x, d_ba, rows, part, work, observer, sink));
    work.elementwise->add(part, rows * hidden, false, dx);
    return Ok{};
}

Status GatedDelta::backward(const Batch& batch, const float* x, const float* dy, float* dx, Workspace& work,
                            Observer* observer, GradientSink* sink) const {
    const Arena::Scope scope(work.arena);
    const int64_t rows = batch.rows(), inner = config_.inner(), channels = config_.channels(), keys = config_.keys();
    const int64_t heads = config_.value_heads, stride = width();
    NIBBLE_TRY(const Inputs in, inputs(batch, x, work, nullptr));
    float* y = work.arena.floats(rows * inner);
    run_rule(batch, in, y, work);
    float* normed = work.arena.floats(rows * inner);
    float* gated = work.arena.floats(rows * inner);
    gate(in, y, rows, normed, gated, work);

    float* d_gated = work.arena.floats(rows * inner);
    float* d_normed = work.arena.floats(rows * inner);
    float* d_projected = work.arena.floats(rows * stride);
    NIBBLE_CHECK(linear_backward(out_, gated, dy, rows, d_gated, work, observer, sink));
    float* d_gate = config_.by_channel ? work.arena.floats(rows * inner) : d_projected + channels;
    gate_backward(in, normed, d_gated, rows, d_gate, d_normed, work);
    const int64_t dim = config_.value_dim;
    float* d_y = d_gated;
    const std::string norm = prefix_ + (config_.by_channel ? ".o_norm.weight" : ".norm.weight");
    NIBBLE_CHECK(norm_backward({.x = y, .stride = dim, .rows = rows * heads, .eps = eps_}, norm_, d_normed, d_y, dim,
                               false, norm, work, sink));

    const RuleGradients d{.dy = d_y,
                          .q = work.arena.floats(rows * keys),
                          .k = work.arena.floats(rows * keys),
                          .qkv = work.arena.floats(rows * channels),
                          .beta = work.arena.floats(rows * heads),
                          .decay = work.arena.floats(rows * config_.decays())};
    rule_backward(batch, in, d, work);
    const NormRows unit{.x = in.qkv, .stride = channels, .rows = rows, .groups = config_.key_heads, .eps = unit_eps_};
    NIBBLE_CHECK(norm_backward(unit, q_scale_, d.q, d.qkv, channels, false, {}, work, nullptr));
    NormRows of_k = unit;
    of_k.x += keys;
    NIBBLE_CHECK(norm_backward(of_k, k_scale_, d.k, d.qkv + keys, channels, false, {}, work, nullptr));
    work.parallel_rows(rows, 4 * channels, [&](int64_t first, int64_t last) {
        const int64_t at = first * channels;
        work.gradient->activate(Activation::silu, in.raw + at, nullptr, d.qkv + at, (last - first) * channels,
                                d.qkv + at, nullptr);
    });
    NIBBLE_CHECK(conv_.backward(batch, in.projected, stride, d.qkv, d_projected, work, sink));
    float* d_ba = work.arena.floats(rows * gate_columns());
    NIBBLE_CHECK(gates_backward(in, rows, d, d_ba, work, sink));
    return projections_backward(in, x, {.projected = d_projected, .ba = d_ba, .gate = d_gate}, rows, dx, work, observer,
                                sink);
}

}  // namespace nibble
