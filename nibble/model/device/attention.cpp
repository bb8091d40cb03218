#include "model/device/attention.h"

#include "kernels/cache_rows_cuda.h"

namespace nibble {

Result<DeviceKv> DeviceKv::make(const KvShape& kv, const std::string& prefix, DeviceWeights& weights) {
    DeviceKv out;
    if (kv.type != KvType::bf16 && kv.type != KvType::fp8)
        return fail("{}: an {} KV cache has no kernels on --device cuda; use --kv bf16, fp8 or fp8_cast", prefix,
                    kv.type == KvType::nvfp4      ? "NVFP4"
                    : kv.type == KvType::fp8_page ? "fp8_page"
                                                  : "FP32");
    out.shape = {.type = kv.type == KvType::fp8 ? cuda::KvType::e4m3 : cuda::KvType::bf16,
                 .kv_heads = kv.heads,
                 .page_tokens = kv_page_tokens,
                 .k_dim = kv.k_dim,
                 .v_dim = kv.v_dim};
    for (const int dim : {kv.k_dim, kv.v_dim})
        if (dim % 8 || dim > 512)
            return fail(
                "{}: heads of {} dimensions have no attention kernel on --device cuda (multiples of 8 up to 512)",
                prefix, dim);
    if (kv.type == KvType::fp8) {
        NIBBLE_TRY(out.k_scales, weights.constant(kv.k_scale, kv.heads));
        NIBBLE_TRY(out.v_scales, weights.constant(kv.v_scale, kv.heads));
        if (kv.q_scale > 0) {
            NIBBLE_TRY(out.q_scale, weights.constant(kv.q_scale, 1));
        }
    }
    return out;
}

cuda::KvCache DeviceKv::cache(const DeviceStep& step) const {
    cuda::KvCache cache{.shape = shape, .pages = step.pages, .k_scales = k_scales, .v_scales = v_scales};
    cache.shape.page_stride = step.page_stride;
    return cache;
}

Result<const std::byte*> DeviceKv::read_queries(const std::byte* q, int64_t cols, DeviceStep& step) const {
    if (!q_scale) return q;
    NIBBLE_TRY(std::byte * read, step.scratch.allocate(2 * step.rows * cols));
    NIBBLE_CHECK(cuda::round_cache({.tokens = step.rows, .count = 1, .sides = {{q, cols, q_scale}}, .out = {read}},
                                   step.stream));
    return read;
}

Result<std::unique_ptr<DeviceMixer>> DeviceAttention::make(const BlockConfig& block, float eps,
                                                           const Attention& attention, DeviceWeights& weights) {
    auto a = std::make_unique<DeviceAttention>();
    a->prefix_ = block.prefix;
    a->index_ = block.index;
    a->eps_ = eps;
    a->config_ = attention.config();
    NIBBLE_TRY(a->kv_, DeviceKv::make(attention.kv(), block.prefix, weights));
    NIBBLE_TRY(a->qkv_, weights.stack(attention.qkv()));
    NIBBLE_TRY(a->out_, weights.linear(attention.out()));
    NIBBLE_TRY(a->q_norm_, weights.vector(attention.q_norm()));
    NIBBLE_TRY(a->k_norm_, weights.vector(attention.k_norm()));
    NIBBLE_TRY(a->sinks_, weights.vector(attention.sinks()));
    if (attention.head_gate()) {
        NIBBLE_TRY(a->head_gate_, weights.linear(*attention.head_gate()));
    }
    const AttentionConfig& c = a->config_;
    a->reach_ = attention.reach();
    a->joined_ = c.qk_norm == QkNorm::joined;
    if (a->joined_ && (c.output_gate || c.kv_block >= 0))
        return fail("{}: a norm over all heads with gates, or without keys, has no kernel on --device cuda",
                    block.prefix);
    if (c.key_scale != 1.0f && (c.v_proj.empty() || c.kv_block >= 0))
        return fail("{}: a multiplier of keys that are also values has no kernel on --device cuda", block.prefix);
    a->options_ = {.late = c.qk_norm == QkNorm::late || c.qk_norm == QkNorm::late_plain,
                   .query_beta = c.query_period > 0 ? c.query_beta : 0.0f,
                   .query_period = c.query_period,
                   .query_offset = c.query_offset,
                   .value_norm = c.value_norm,
                   .value_scale = c.value_scale,
                   .gated = c.output_gate,
                   .keys_as_values = c.v_proj.empty(),
                   .queries_only = c.kv_block >= 0};
    return std::unique_ptr<DeviceMixer>(std::move(a));
}

Status DeviceAttention::forward(const DeviceInput& in, float* y, DeviceStep& step) const {
    const DeviceScope scope(step);
    const bool rounds = qkv_.rounds(step.rows) && config_.key_scale == 1.0f;
    NIBBLE_TRY(std::byte * qkv, step.scratch.allocate(step.rows * qkv_.rows * (rounds ? 2 : 4)));
    NIBBLE_TRY(std::byte * q, step.scratch.allocate(step.rows * q_cols() * 2));
    NIBBLE_TRY(std::byte * heads, step.scratch.allocate(step.rows * out_.cols * 2));
    auto* unrounded = rounds ? nullptr : reinterpret_cast<float*>(qkv);
    cuda::RopeAppend append = rope_append(unrounded, q, step);
    if (rounds) append.qkv_rows = qkv;
    if (joined_) {
        NIBBLE_TRY(append.options.joined_scales, step.scratch.allocate_array<float>(2 * step.rows));
    }
    NIBBLE_CHECK(rounds ? qkv_.parts[0].forward_rounded(in, step.rows, qkv, step)
                        : qkv_.forward(in, step.rows, unrounded, step));
    if (config_.key_scale != 1.0f)
        NIBBLE_CHECK(cuda::scale_columns({.tokens = step.rows,
                                          .x = unrounded,
                                          .stride = qkv_.rows,
                                          .first = config_.q_rows(),
                                          .parts = {{{config_.kv_cols(), config_.key_scale}}}},
                                         step.overlap, step.stream));
    NIBBLE_CHECK(cuda::rope_append(append, cache(step), step.overlap, step.stream));
    if (step.observer && config_.kv_block < 0)
        NIBBLE_CHECK(
            step.observer->kv(prefix_, cache(step), step.blocks[size_t(index_)].slots, step.rows, step.stream));
    NIBBLE_CHECK(attend(q, heads, step));
    if (gates()) NIBBLE_CHECK(gate(in, unrounded, rounds ? qkv : nullptr, heads, step));
    return out_.forward({.x = heads}, step.rows, y, out_.rows, step);
}

Status DeviceAttention::gate(const DeviceInput& x, const float* unrounded, const std::byte* rounded, std::byte* heads,
                             DeviceStep& step) const {
    const DeviceScope scope(step);
    const int dim = config_.value_dim();
    if (config_.output_gate) {
        const int64_t first = config_.head_dim;  // the gate of head 0
        NIBBLE_CHECK(cuda::gate_heads({.tokens = step.rows,
                                       .heads = config_.heads,
                                       .dim = dim,
                                       .x = heads,
                                       .gates = unrounded ? unrounded + first : nullptr,
                                       .gate_rows = rounded ? rounded + 2 * first : nullptr,
                                       .stride = qkv_.rows,
                                       .pitch = 2 * config_.head_dim},
                                      step.overlap, step.stream));
    }
    if (!head_gate_) return Ok{};
    NIBBLE_TRY(float* gates, step.scratch.allocate_array<float>(step.rows * config_.heads));
    NIBBLE_CHECK(head_gate_->forward({.x = x.x}, step.rows, gates, config_.heads, step));
    return cuda::gate_heads({.tokens = step.rows,
                             .heads = config_.heads,
                             .dim = dim,
                             .x = heads,
                             .gates = gates,
                             .stride = config_.heads,
                             .by_head = true},
                            step.overlap, step.stream);
}

cuda::RopeAppend DeviceAttention::rope_append(const float* qkv, std::byte* q, const DeviceStep& step) const {
    const DeviceRotary rotary = step.rotary_of(config_.rope);
    return {.tokens = step.rows,
            .q_heads = config_.heads,
            .qkv = qkv,
            .slots = step.blocks[size_t(index_)].slots,
            .q_norm = q_norm_,
            .k_norm = k_norm_,
            .eps = eps_,
            .rope_dims = config_.rope.dims,
            .interleaved = config_.rope.interleaved,
            .positions = step.positions,
            .cos = rotary.cos,
            .sin = rotary.sin,
            .q = q,
            .options = options_};
}

Status DeviceAttention::attend(const std::byte* q, std::byte* heads, DeviceStep& step, float* log_sums) const {
    const DeviceScope scope(step);
    const DeviceBlockBatch& batch = step.blocks[size_t(index_)];
    NIBBLE_TRY(std::byte * workspace, step.scratch.allocate(batch.attention->workspace_bytes));
    NIBBLE_TRY(const std::byte* read, kv_.read_queries(q, q_cols(), step));
    return cuda::attend(*batch.attention,
                        {.q = read, .table = batch.table, .work = batch.work, .log_sums = log_sums, .sinks = sinks_},
                        cache(step), heads, workspace, step.overlap, step.stream);
}

Status DeviceAttention::kernels(bool inside, const DeviceStep& step, std::vector<KernelUse>& uses) const {
    const size_t first = uses.size();
    NIBBLE_CHECK(qkv_.kernels(step.rows, step, uses));
    if (inside) note_norm_inside(uses, first);
    if (head_gate_) NIBBLE_CHECK(head_gate_->kernels(step.rows, step, uses));
    return out_.kernels(step.rows, step, uses);
}

int64_t DeviceAttention::scratch_bytes(int64_t rows) const {
    int64_t products = std::max(qkv_.scratch_bytes(rows), out_.scratch_bytes(rows));
    if (head_gate_) products = std::max(products, 4 * rows * config_.heads + head_gate_->scratch_bytes(rows));
    return rows * (4 * qkv_.rows + 2 * q_cols() + 2 * out_.cols + 8) + kv_.query_bytes(rows, q_cols()) + products +
           12 * DeviceArena::alignment;
}

}  // namespace nibble
