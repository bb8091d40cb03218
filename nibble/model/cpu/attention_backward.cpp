#include "model/cpu/attend.h"
#include "model/cpu/attend_backward.h"
#include "model/cpu/attention.h"
#include "model/gradients.h"

#include <algorithm>

namespace nibble {

Status Attention::norms_backward(const float* raw, int64_t rows, float* d_qkv, Workspace& work,
                                 GradientSink* sink) const {
    const int64_t stride = qkv_.rows();
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
    const int64_t rows = batch.rows(), stride = qkv_.rows(), half = config_.rope.dims / 2;
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

Status Attention::backward(const Batch& batch, const float* x, const float* dy, float* dx, Workspace& work,
                           Observer* observer, GradientSink* sink) const {
    const Arena::Scope scope(work.arena);
    const int64_t rows = batch.rows(), stride = qkv_.rows(), k_at = q_cols(), v_at = q_cols() + kv_cols();
    float* qkv = work.arena.floats(rows * stride);
    NIBBLE_CHECK(qkv_.forward(x, rows, qkv, work, nullptr));
    const bool late = config_.qk_norm == QkNorm::late;
    float* raw = nullptr;  // q and k before their norms
    if (!q_norm_.empty()) {
        raw = work.arena.floats(rows * stride);
        std::copy_n(qkv, rows * stride, raw);
        if (const int64_t half = config_.rope.dims / 2; late && half > 0) {
            const RotaryRows rotary = work.rotary(config_.rope, batch.positions());
            for (int64_t i = 0; i < rows; ++i)
                rotate_row(raw + i * stride, rotary.cos + i * half, rotary.sin + i * half, work.bf16(), work);
        }
    }
    prepare_rows(batch, qkv, work);
    float* mixed = work.arena.floats(rows * q_cols());
    float* d_mixed = work.arena.floats(rows * q_cols());
    if (observer || sink)
        attend(batch, index_, shape(work), qkv, stride, qkv + k_at, stride, qkv + v_at, stride, mixed, work);
    NIBBLE_CHECK(linear_backward(out_, mixed, dy, rows, d_mixed, work, observer, sink));
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
    for (int64_t i = 0; i < rows; ++i)
        scale_query(d_qkv + i * stride, batch.positions()[static_cast<size_t>(i)], false, work);
    if (late) NIBBLE_CHECK(norms_backward(raw, rows, d_qkv, work, sink));
    rotate_back(batch, d_qkv, work);
    if (raw && !late) NIBBLE_CHECK(norms_backward(raw, rows, d_qkv, work, sink));
    return linear_backward(qkv_, x, d_qkv, rows, dx, work, observer, sink);
}

}  // namespace nibble
