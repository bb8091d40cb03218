#include "kernels/exp.h"
#include "model/cpu/attend.h"
#include "model/cpu/attend_backward.h"
#include "model/cpu/attention.h"
#include "model/gradients.h"

#include <algorithm>

namespace nibble {

Status Attention::norms_backward(const float* raw, int64_t rows, float* d_qkv, Workspace& work,
                                 GradientSink* sink) const {
    const int64_t stride = cols();
    // Values normalized together form one row: a head, or all heads of a row.
    const auto norm = [&](int64_t from, int64_t cols, const std::vector<float>& w, const std::string& name) -> Status {
        const Arena::Scope inner(work.arena);
        const auto n = static_cast<int64_t>(w.size());
        float* x = work.arena.floats(rows * cols);
        float* d = work.arena.floats(rows * cols);
        for (int64_t i = 0; i < rows; ++i) {
            std::copy_n(raw + i * stride + from, cols, x + i * cols);
            std::copy_n(d_qkv + i * stride + from, cols, d + i * cols);
        }
        NIBBLE_CHECK(norm_backward({.x = x, .stride = n, .rows = rows * cols / n, .eps = eps_}, w, d, d, n, false, name,
                                   work, sink));
        for (int64_t i = 0; i < rows; ++i) std::copy_n(d + i * cols, cols, d_qkv + i * stride + from);
        return Ok{};
    };
    NIBBLE_CHECK(norm(0, q_cols(), q_norm_, q_norm_name_));
    return norm(q_cols(), kv_cols(), k_norm_, k_norm_name_);
}

void Attention::rotate_back(const Batch& batch, float* d_qkv, Workspace& work) const {
    const int64_t rows = batch.rows(), stride = cols(), half = config_.rope.dims / 2;
    if (half == 0) return;
    const Arena::Scope scope(work.arena);
    const RotaryRows rotary = work.rotary(config_.rope, batch.positions());
    float* sin = work.arena.floats(rows * half);
    for (int64_t i = 0; i < rows * half; ++i) sin[i] = -rotary.sin[i];
    work.parallel_rows(rows, q_cols() + kv_cols(), [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i)
            rotate_row(d_qkv + i * stride, rotary.cos + i * half, sin + i * half, false, work);
    });
}

void Attention::gate_backward(const GateGradient& g, int64_t rows, float* d_gate, Workspace& work) const {
    const int64_t n = q_cols();
    work.parallel_rows(rows, 20 * n, [&](int64_t first, int64_t last) {
        for (int64_t i = first * n; i < last * n; ++i) {
            const float s = 1.0f / (1.0f + exp_f32(-g.gate[i])), d = g.d_x[i] * s;
            d_gate[i] = d * g.x[i] * (1.0f - s);
            g.d_x[i] = d;
        }
    });
}

void Attention::merge(const float* d_qkv, const float* d_gate, int64_t rows, float* d_projected,
                      Workspace& work) const {
    const int64_t dim = config_.head_dim, width = cols();
    work.parallel_rows(rows, 2 * qkv_.rows(), [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
            float* row = d_projected + i * qkv_.rows();
            for (int64_t h = 0; h < config_.heads; ++h) {
                std::copy_n(d_qkv + i * width + h * dim, dim, row + 2 * h * dim);
                std::copy_n(d_gate + i * q_cols() + h * dim, dim, row + (2 * h + 1) * dim);
            }
            std::copy_n(d_qkv + i * width + q_cols(), kv_cols() + v_cols(), row + 2 * q_cols());
        }
    });
}

Status Attention::backward(const Batch& batch, const float* x, const float* dy, float* dx, Workspace& work,
                           Observer* observer, GradientSink* sink) const {
    if (indexer_) NIBBLE_CHECK(indexer_->check_dense(batch));
    const Arena::Scope scope(work.arena);
    const int64_t rows = batch.rows(), stride = cols(), k_at = q_cols(), v_at = q_cols() + kv_cols();
    float* projected = work.arena.floats(rows * qkv_.rows());
    NIBBLE_CHECK(qkv_.forward(x, rows, projected, work, nullptr));
    const auto [qkv, gate] = split(projected, rows, work);
    const bool late = config_.qk_norm == QkNorm::late;
    float* raw = nullptr;  // q and k before their norms
    if (!q_norm_.empty()) {
        raw = work.arena.floats(rows * stride);
        std::copy_n(qkv, rows * stride, raw);
        for (int64_t i = 0; i < rows; ++i) scale_keys(raw + i * stride + k_at, work.bf16(), work);
        if (const int64_t half = config_.rope.dims / 2; late && half > 0) {
            const RotaryRows rotary = work.rotary(config_.rope, batch.positions());
            for (int64_t i = 0; i < rows; ++i)
                rotate_row(raw + i * stride, rotary.cos + i * half, rotary.sin + i * half, work.bf16(), work);
        }
    }
    prepare_rows(batch, qkv, work);
    float* mixed = work.arena.floats(rows * config_.out_cols());
    float* d_mixed = work.arena.floats(rows * config_.out_cols());
    if (observer || sink || gate)
        attend(batch, index_, shape(work), qkv, stride, qkv + k_at, stride, qkv + v_at, stride, mixed, work);
    float* gated = mixed;
    if (gate) {
        gated = work.arena.floats(rows * q_cols());
        std::copy_n(mixed, rows * q_cols(), gated);
        apply_gate(gate, rows, gated, work);
    }
    NIBBLE_CHECK(linear_backward(out_, gated, dy, rows, d_mixed, work, observer, sink));
    float* d_gate = gate ? work.arena.floats(rows * q_cols()) : nullptr;
    if (gate) gate_backward({.gate = gate, .x = mixed, .d_x = d_mixed}, rows, d_gate, work);
    float* d_qkv = work.arena.floats(rows * stride);
    attend_backward(batch, shape(work),
                    {.q = qkv,
                     .k = qkv + k_at,
                     .v = qkv + v_at,
                     .q_stride = stride,
                     .k_stride = stride,
                     .v_stride = stride,
                     .dy = d_mixed,
                     .dq = d_qkv,
                     .dk = d_qkv + k_at,
                     .dv = d_qkv + v_at},
                    work);
    if (config_.value_scale != 1.0f)
        for (int64_t i = 0; i < rows; ++i)
            for (int64_t j = v_at; j < stride; ++j) d_qkv[i * stride + j] *= config_.value_scale;
    for (int64_t i = 0; i < rows; ++i)
        scale_query(d_qkv + i * stride, batch.positions()[static_cast<size_t>(i)], false, work);
    if (late) NIBBLE_CHECK(norms_backward(raw, rows, d_qkv, work, sink));
    rotate_back(batch, d_qkv, work);
    if (raw && !late) NIBBLE_CHECK(norms_backward(raw, rows, d_qkv, work, sink));
    for (int64_t i = 0; i < rows; ++i) scale_keys(d_qkv + i * stride + k_at, false, work);
    if (!gate) return linear_backward(qkv_, x, d_qkv, rows, dx, work, observer, sink);
    float* d_projected = work.arena.floats(rows * qkv_.rows());
    merge(d_qkv, d_gate, rows, d_projected, work);
    return linear_backward(qkv_, x, d_projected, rows, dx, work, observer, sink);
}

}  // namespace nibble
