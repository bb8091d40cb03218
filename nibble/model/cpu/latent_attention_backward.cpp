#include "model/cpu/attend.h"
#include "model/cpu/attend_backward.h"
#include "model/cpu/latent_attention.h"
#include "model/gradients.h"

#include <algorithm>

namespace nibble {

Status LatentAttention::backward(const Batch& batch, const float* x, const float* dy, float* dx, Workspace& work,
                                 Observer* observer, GradientSink* sink) const {
    if (indexer_) NIBBLE_CHECK(indexer_->check_dense(batch));
    const Arena::Scope scope(work.arena);
    const int64_t rows = batch.rows(), heads = config_.heads, dim = k_dim(), nope = config_.nope_dim;
    const int64_t v_dim = config_.v_dim, rope = config_.rope.dims, rank = config_.kv_rank;
    const int64_t q_part = in_.parts[0].rows, stride = in_.rows();
    NIBBLE_TRY(const Projected p, project(batch, x, work, nullptr));
    float* mixed = work.arena.floats(rows * heads * v_dim);
    float* d_mixed = work.arena.floats(rows * heads * v_dim);
    const AttentionShape shape{.kv = kv_, .heads = config_.heads, .scale = config_.scale, .bf16 = work.bf16()};
    attend(batch, index_, shape, p.q, heads * dim, p.k, heads * dim, p.v, heads * v_dim, mixed, work);
    NIBBLE_CHECK(linear_backward(o_, mixed, dy, rows, d_mixed, work, observer, sink));
    float* dq = work.arena.floats(rows * heads * dim);
    float* dk = work.arena.floats(rows * heads * dim);
    float* dv = work.arena.floats(rows * heads * v_dim);
    attend_backward(batch, shape,
                    {.q = p.q,
                     .k = p.k,
                     .v = p.v,
                     .q_stride = heads * dim,
                     .k_stride = heads * dim,
                     .v_stride = heads * v_dim,
                     .dy = d_mixed,
                     .dq = dq,
                     .dk = dk,
                     .dv = dv},
                    work);

    // The transpose of a rotation is the rotation by the negative angle.
    const RotaryRows rotary = config_.rotates ? work.rotary(config_.rope, batch.positions()) : RotaryRows{};
    float* sin = work.arena.floats(rows * rope / 2);
    for (int64_t i = 0; config_.rotates && i < rows * rope / 2; ++i) sin[i] = -rotary.sin[i];
    float* d_in = work.arena.floats(rows * stride);
    float* d_kv = work.arena.floats(rows * kv_b_.rows);
    work.parallel_rows(rows, 6 * heads * dim, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
            float *q = dq + i * heads * dim, *k = dk + i * heads * dim, *shared = d_in + i * stride + q_part + rank;
            const auto rotate_back = [&](float* x, int64_t count, int64_t gap) {
                if (config_.rotates)
                    work.elementwise->rope(x, count, gap, rotary.cos + i * rope / 2, sin + i * rope / 2, rope,
                                           config_.rope.interleaved, false);
            };
            scale_query(q, batch.positions()[static_cast<size_t>(i)], false, work);
            rotate_back(q + nope, heads, dim);
            std::fill_n(shared, rope, 0.0f);
            for (int64_t h = 0; h < heads; ++h) {
                float* to = d_kv + i * kv_b_.rows + h * (nope + v_dim);
                std::copy_n(k + h * dim, nope, to);
                std::copy_n(dv + (i * heads + h) * v_dim, v_dim, to + nope);
                for (int64_t j = 0; j < rope; ++j) shared[j] += k[h * dim + nope + j];
            }
            rotate_back(shared, 1, rope);
        }
    });
    float* d_c = work.arena.floats(rows * rank);
    NIBBLE_CHECK(linear_backward(kv_b_, p.c, d_kv, rows, d_c, work, observer, sink));
    NIBBLE_CHECK(norm_backward({.x = p.in + q_part, .stride = stride, .rows = rows, .eps = eps_}, kv_norm_, d_c,
                               d_in + q_part, stride, false, prefix_ + ".kv_a_layernorm.weight", work, sink));
    if (q_b_) {
        float* d_q_a = work.arena.floats(rows * q_part);
        NIBBLE_CHECK(linear_backward(*q_b_, p.q_a, dq, rows, d_q_a, work, observer, sink));
        NIBBLE_CHECK(norm_backward({.x = p.in, .stride = stride, .rows = rows, .eps = eps_}, q_norm_, d_q_a, d_in,
                                   stride, false, prefix_ + ".q_a_layernorm.weight", work, sink));
    } else {
        for (int64_t i = 0; i < rows; ++i) std::copy_n(dq + i * q_part, q_part, d_in + i * stride);
    }
    return linear_backward(in_, x, d_in, rows, dx, work, observer, sink);
}

}  // namespace nibble
