#include "model/cpu/attend.h"
#include "model/cpu/attend_backward.h"
#include "model/cpu/attention.h"
#include "model/gradients.h"

#include <algorithm>

namespace nibble {

// dqkv, in place, back through the rotary embedding (its transpose is the rotation by the negative angle) and the norms
// of q and k, whose inputs `raw` holds.
Status Attention::rows_backward(const Batch& batch, const float* raw, float* d_qkv, Workspace& work,
                                GradientSink* sink) const {
    const int64_t rows = batch.rows(), stride = qkv_.rows(), dim = config_.head_dim, half = config_.rope.dims / 2;
    const int64_t rotated = config_.heads + config_.kv_heads;
    const Arena::Scope scope(work.arena);
    if (half) {
        const RotaryRows rotary = work.rotary(config_.rope, batch.positions());
        float* sin = work.arena.floats(rows * half);
        for (int64_t i = 0; i < rows * half; ++i) sin[i] = -rotary.sin[i];
        work.parallel_rows(rows, rotated * dim, [&](int64_t first, int64_t last) {
            for (int64_t i = first; i < last; ++i)
                work.elementwise->rope(d_qkv + i * stride, rotated, dim, rotary.cos + i * half, sin + i * half,
                                       config_.rope.dims, config_.rope.interleaved, false);
        });
    }
    if (q_norm_.empty()) return Ok{};
    // Every head of every row is a row of its own.
    const auto norm = [&](int64_t from, int64_t heads, const std::vector<float>& w, const std::string& name) -> Status {
        const Arena::Scope inner(work.arena);
        float* x = work.arena.floats(rows * heads * dim);
        float* d = work.arena.floats(rows * heads * dim);
        for (int64_t i = 0; i < rows; ++i) {
            std::copy_n(raw + i * stride + from, heads * dim, x + i * heads * dim);
            std::copy_n(d_qkv + i * stride + from, heads * dim, d + i * heads * dim);
        }
        NIBBLE_CHECK(norm_backward({.x = x, .stride = dim, .rows = rows * heads, .eps = eps_}, w, d, d, dim, false,
                                   prefix_ + name, work, sink));
        for (int64_t i = 0; i < rows; ++i) std::copy_n(d + i * heads * dim, heads * dim, d_qkv + i * stride + from);
        return Ok{};
    };
    NIBBLE_CHECK(norm(0, config_.heads, q_norm_, ".q_norm.weight"));
    return norm(q_cols(), config_.kv_heads, k_norm_, ".k_norm.weight");
}

Status Attention::backward(const Batch& batch, const float* x, const float* dy, float* dx, Workspace& work,
                           Observer* observer, GradientSink* sink) const {
    const Arena::Scope scope(work.arena);
    const int64_t rows = batch.rows(), stride = qkv_.rows(), k_at = q_cols(), v_at = q_cols() + kv_cols();
    float* qkv = work.arena.floats(rows * stride);
    NIBBLE_CHECK(qkv_.forward(x, rows, qkv, work, nullptr));
    float* raw = nullptr;
    if (!q_norm_.empty()) {
        raw = work.arena.floats(rows * stride);
        std::copy_n(qkv, rows * stride, raw);
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
    NIBBLE_CHECK(rows_backward(batch, raw, d_qkv, work, sink));
    return linear_backward(qkv_, x, d_qkv, rows, dx, work, observer, sink);
}

}  // namespace nibble
