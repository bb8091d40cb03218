#include "model/device/latent_attention.h"

#include <algorithm>

namespace nibble {

Result<std::unique_ptr<DeviceMixer>> DeviceLatentAttention::make(const BlockConfig& block,
                                                                 const LatentAttention& attention,
                                                                 DeviceWeights& weights) {
    auto a = std::make_unique<DeviceLatentAttention>();
    a->prefix_ = block.prefix;
    a->index_ = block.index;
    a->config_ = attention.config();
    NIBBLE_TRY(a->kv_, DeviceKv::make(attention.kv(), block.prefix, weights));
    a->q_part_ = attention.in().parts[0].rows;
    NIBBLE_TRY(a->in_, weights.stack(attention.in()));
    NIBBLE_TRY(a->q_norm_, weights.vector(attention.q_norm()));
    if (attention.q_b()) {
        NIBBLE_TRY(a->q_b_, weights.linear(*attention.q_b()));
    }
    NIBBLE_TRY(a->kv_norm_, weights.vector(attention.kv_norm()));
    NIBBLE_TRY(a->kv_b_, weights.linear(attention.kv_b()));
    NIBBLE_TRY(a->out_, weights.linear(attention.out()));
    return std::unique_ptr<DeviceMixer>(std::move(a));
}

Status DeviceLatentAttention::forward(const DeviceInput& x, float* y, DeviceStep& step) const {
    const DeviceScope scope(step);
    const int64_t rows = step.rows, rank = config_.kv_rank;
    NIBBLE_TRY(float* in, step.scratch.allocate_array<float>(rows * in_.rows));
    NIBBLE_CHECK(in_.forward(x, rows, in, step));
    const float *q_in = in, *c_in = in + q_part_;
    int64_t q_stride = in_.rows;
    if (q_b_) {
        NIBBLE_TRY(std::byte * q_a, step.scratch.allocate(rows * q_part_ * 2));
        NIBBLE_TRY(float* q_wide, step.scratch.allocate_array<float>(rows * q_cols()));
        NIBBLE_CHECK(cuda::norm_rows({.tokens = rows,
                                      .width = q_part_,
                                      .in = in,
                                      .in_stride = in_.rows,
                                      .weight = q_norm_,
                                      .eps = LatentAttention::eps_,
                                      .out = q_a},
                                     step.overlap, step.stream));
        NIBBLE_CHECK(q_b_->forward({.x = q_a}, rows, q_wide, q_cols(), step));
        q_in = q_wide, q_stride = q_cols();
    }
    NIBBLE_TRY(std::byte * c, step.scratch.allocate(rows * rank * 2));
    NIBBLE_TRY(float* kv, step.scratch.allocate_array<float>(rows * kv_b_.rows));
    NIBBLE_CHECK(cuda::norm_rows({.tokens = rows,
                                  .width = rank,
                                  .in = c_in,
                                  .in_stride = in_.rows,
                                  .weight = kv_norm_,
                                  .eps = LatentAttention::eps_,
                                  .out = c},
                                 step.overlap, step.stream));
    NIBBLE_CHECK(kv_b_.forward({.x = c}, rows, kv, kv_b_.rows, step));
    NIBBLE_TRY(std::byte * q, step.scratch.allocate(rows * q_cols() * 2));
    NIBBLE_TRY(std::byte * heads, step.scratch.allocate(rows * v_cols() * 2));
    NIBBLE_CHECK(attend(q_in, q_stride, kv, c_in + rank, in_.rows, q, heads, step));
    return out_.forward({.x = heads}, rows, y, out_.rows, step);
}

Status DeviceLatentAttention::attend(const float* q_in, int64_t q_stride, const float* kv, const float* shared,
                                     int64_t shared_stride, std::byte* q, std::byte* heads, DeviceStep& step,
                                     float* log_sums) const {
    const DeviceScope scope(step);
    const int64_t rows = step.rows;
    const DeviceBlockBatch& batch = step.blocks[size_t(index_)];
    const DeviceRotary rotary = config_.rotates ? step.rotary_of(config_.rope) : DeviceRotary{};
    NIBBLE_TRY(std::byte * workspace, step.scratch.allocate(batch.attention->workspace_bytes));
    const cuda::KvCache cache = kv_.cache(step);
    NIBBLE_CHECK(cuda::latent_append({.tokens = rows,
                                      .heads = config_.heads,
                                      .nope_dim = config_.nope_dim,
                                      .rope_dims = config_.rope.dims,
                                      .v_dim = config_.v_dim,
                                      .q_in = q_in,
                                      .q_stride = q_stride,
                                      .kv = kv,
                                      .shared = shared,
                                      .shared_stride = shared_stride,
                                      .slots = batch.slots,
                                      .rotates = config_.rotates,
                                      .interleaved = config_.rope.interleaved,
                                      .positions = step.positions,
                                      .cos = rotary.cos,
                                      .sin = rotary.sin,
                                      .q = q,
                                      .query_beta = config_.query_beta,
                                      .query_period = config_.query_period},
                                     cache, step.overlap, step.stream));
    if (step.observer) NIBBLE_CHECK(step.observer->kv(prefix_, cache, batch.slots, step.rows, step.stream));
    NIBBLE_TRY(const std::byte* read, kv_.read_queries(q, q_cols(), step));
    return cuda::attend(*batch.attention, {.q = read, .table = batch.table, .work = batch.work, .log_sums = log_sums},
                        cache, heads, workspace, step.overlap, step.stream);
}

Status DeviceLatentAttention::kernels(bool, const DeviceStep& step, std::vector<KernelUse>& uses) const {
    NIBBLE_CHECK(in_.kernels(step.rows, step, uses));
    if (q_b_) NIBBLE_CHECK(q_b_->kernels(step.rows, step, uses));
    NIBBLE_CHECK(kv_b_.kernels(step.rows, step, uses));
    return out_.kernels(step.rows, step, uses);
}

int64_t DeviceLatentAttention::scratch_bytes(int64_t rows) const {
    const int64_t buffers =
        4 * in_.rows + 2 * q_part_ + 4 * q_cols() + 2 * config_.kv_rank + 4 * kv_b_.rows + 2 * q_cols() + 2 * v_cols();
    return rows * buffers + kv_.query_bytes(rows, q_cols()) +
           std::max({in_.scratch_bytes(rows), q_b_ ? q_b_->scratch_bytes(rows) : 0, kv_b_.scratch_bytes(rows),
                     out_.scratch_bytes(rows)}) +
           12 * DeviceArena::alignment;
}

}  // namespace nibble
