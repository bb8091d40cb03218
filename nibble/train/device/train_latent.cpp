// Multi-head latent attention.
//
// kept: the parts of the first product's output, rounded to BF16 (the inputs of the inner norms: that of the queries if
// there is q_b, and that of the latent row; the shared key); the output of kv_b; the queries after the rotary
// embedding; the output of attention; the logarithms of its softmax sums.
#include "kernels/attention_backward_cuda.h"
#include "model/device/latent_attention.h"
#include "train/device/device_cache.h"
#include "train/device/train_mixer.h"

#include <algorithm>
#include <array>

namespace nibble {
namespace {

class TrainLatentAttention : public TrainMixer {
public:
    static Result<std::unique_ptr<TrainMixer>> make(const TrainMixerParts& parts, const LatentAttentionConfig& config);

    Result<TrainMixerSizes> sizes(int64_t n) const override;
    Status forward(const std::byte* x, std::span<std::byte* const> kept, bool keep, std::byte* y,
                   TrainWork& work) const override;
    Status backward(const std::byte* x, std::span<std::byte* const> kept, const std::byte* dy, std::byte* dx,
                    float* gradient, TrainWork& work) const override;
    Status publish(const std::byte* published, const Stream& stream) const override;

private:
    enum Buffer : size_t { q_inner, c_inner, shared, wide_kv, queries, heads, log_sums };
    int64_t dim() const { return config_.nope_dim + config_.rope.dims; }
    int64_t q_cols() const { return config_.heads * dim(); }
    int64_t v_cols() const { return int64_t{config_.heads} * config_.v_dim; }
    cuda::LatentShape shape(const DeviceStep& step) const;
    Status see(std::span<std::byte* const> kept, TrainWork& work) const;
    // normed() applies an inner norm to rows; norm_back() computes the gradient of its input.
    Status normed(const std::byte* x, int64_t width, const float* weight, std::byte* y, TrainWork& work) const;
    Status norm_back(const std::byte* x, int64_t width, const float* weight, const std::byte* dy, float* dx,
                     float* dweight, TrainWork& work) const;
    // Computes the gradient of the first product's output from those of queries and of kv_b's output.
    Status to_first_product(std::span<std::byte* const> kept, const std::byte* dq, const std::byte* d_kv,
                            const std::byte* d_shared, std::byte* d_in, float* gradient, TrainWork& work) const;

    std::string prefix_;
    LatentAttentionConfig config_;
    const DeviceLatentAttention* engine_ = nullptr;
    TrainLinear in_, q_b_, kv_b_, out_;
    bool has_q_b_ = false;
    int64_t q_part_ = 0;                // columns of in_'s output for queries
    int64_t q_norm_ = 0, kv_norm_ = 0;  // offsets in the flat arrays, or -1
    bool cached_ = false;
};

Result<std::unique_ptr<TrainMixer>> TrainLatentAttention::make(const TrainMixerParts& parts,
                                                               const LatentAttentionConfig& config) {
    auto t = std::make_unique<TrainLatentAttention>();
    auto& engine = static_cast<DeviceLatentAttention&>(*parts.layer.mixer);
    t->prefix_ = parts.layer.config.prefix;
    t->config_ = config;
    t->engine_ = &engine;
    t->cached_ = parts.cached;
    t->q_part_ = engine.q_part();
    t->has_q_b_ = engine.q_b().has_value();
    size_t unit = 0;
    NIBBLE_TRY(t->in_, TrainLinear::of(parts.units[unit++], engine.in(), parts.vectors));
    if (t->has_q_b_) t->q_b_ = TrainLinear(parts.units[unit++], *engine.q_b(), parts.vectors);
    t->kv_b_ = TrainLinear(parts.units[unit++], engine.kv_b(), parts.vectors);
    t->out_ = TrainLinear(parts.units[unit], engine.out(), parts.vectors);
    if (t->has_q_b_) {
        NIBBLE_TRY(t->q_norm_, parts.vectors.place(t->prefix_ + ".q_a_layernorm.weight"));
    }
    NIBBLE_TRY(t->kv_norm_, parts.vectors.place(t->prefix_ + ".kv_a_layernorm.weight"));
    if (t->kv_norm_ >= 0)
        engine.use_norms(t->has_q_b_ ? parts.vectors.at(t->q_norm_) : nullptr, parts.vectors.at(t->kv_norm_));
    return std::unique_ptr<TrainMixer>(std::move(t));
}

Result<TrainMixerSizes> TrainLatentAttention::sizes(int64_t n) const {
    if (!cuda::has_attention_backward(static_cast<int>(dim())))
        return fail("--device cuda does not train heads of {} dimensions yet ({})", dim(), prefix_);
    if (config_.v_dim > dim() || config_.v_dim % 8 || config_.kv_rank % 8 || config_.rope.dims % 8 || q_part_ % 8)
        return fail(
            "--device cuda trains latent attention whose values are at most as wide as keys, in multiples of 8 ({})",
            prefix_);
    const int64_t q_rank = has_q_b_ ? q_part_ : 0, rank = config_.kv_rank, rope = config_.rope.dims;
    const int64_t wide = whole(2 * n * q_cols()), kv = whole(2 * n * kv_b_.rows()), of_heads = whole(2 * n * v_cols());
    const int64_t inner = whole(2 * n * q_rank) + whole(2 * n * rank);
    TrainMixerSizes s{.kept = {2 * n * q_rank, 2 * n * rank, 2 * n * rope, 2 * n * kv_b_.rows(), 2 * n * q_cols(),
                               2 * n * v_cols(), 4 * n * config_.heads}};
    s.forward = whole(4 * n * in_.rows()) + inner + (has_q_b_ ? whole(4 * n * q_cols()) : 0) + 2 * kv +
                whole(out_.rounded_bytes(n));
    if (cached_) s.forward += 5 * wide;
    const int64_t rows = (cached_ ? 10 : 7) * wide + whole(cuda::attention_backward_workspace(n, config_.heads));
    s.backward = of_heads + rows + kv + whole(2 * n * rope) + whole(2 * n * in_.rows()) + 2 * inner +
                 whole(4 * n * q_rank) + whole(4 * n * rank);
    s.workspace = std::max({cuda::norm_backward_workspace(std::max(q_rank, rank)), in_.workspace(), q_b_.workspace(),
                            kv_b_.workspace(), out_.workspace()});
    return s;
}

cuda::LatentShape TrainLatentAttention::shape(const DeviceStep& step) const {
    const DeviceRotary rotary = step.rotary_of(config_.rope);
    return {.tokens = step.rows,
            .heads = config_.heads,
            .nope_dim = config_.nope_dim,
            .rope_dims = config_.rope.dims,
            .v_dim = config_.v_dim,
            .interleaved = config_.rope.interleaved,
            .positions = step.positions,
            .cos = rotary.cos,
            .sin = rotary.sin};
}

Status TrainLatentAttention::forward(const std::byte* x, std::span<std::byte* const> kept, bool keep, std::byte* y,
                                     TrainWork& work) const {
    DeviceStep& step = work.step;
    const DeviceScope scope(step);
    const int64_t n = step.rows, rank = config_.kv_rank, stride = in_.rows();
    keep = keep || work.cache;
    const auto keep_rows = [&](const float* from, int64_t width, int64_t from_stride, Buffer to) -> Status {
        if (!keep) return Ok{};
        return cuda::to_rows(from, from_stride, n, width, {kept[to]}, step.overlap, step.stream);
    };
    const auto inner_norm = [&](const float* from, int64_t width, const float* weight, std::byte* to) {
        return cuda::norm_rows({.tokens = n,
                                .width = width,
                                .in = from,
                                .in_stride = stride,
                                .weight = weight,
                                .eps = LatentAttention::eps_,
                                .out = to},
                               step.overlap, step.stream);
    };
    NIBBLE_TRY(float* in, step.scratch.allocate_array<float>(n * stride));
    NIBBLE_CHECK(in_.forward(x, n, in, 0, work));
    const float *q_in = in, *c_in = in + q_part_;
    int64_t q_stride = stride;
    if (has_q_b_) {
        NIBBLE_TRY(std::byte * q_a, step.scratch.allocate(2 * n * q_part_));
        NIBBLE_TRY(float* wide, step.scratch.allocate_array<float>(n * q_cols()));
        NIBBLE_CHECK(keep_rows(in, q_part_, stride, q_inner));
        NIBBLE_CHECK(inner_norm(in, q_part_, engine_->q_norm(), q_a));
        NIBBLE_CHECK(q_b_.forward(q_a, n, wide, 0, work));
        q_in = wide, q_stride = q_cols();
    }
    NIBBLE_TRY(std::byte * c, step.scratch.allocate(2 * n * rank));
    NIBBLE_TRY(float* kv, step.scratch.allocate_array<float>(n * kv_b_.rows()));
    NIBBLE_CHECK(keep_rows(c_in, rank, stride, c_inner));
    NIBBLE_CHECK(keep_rows(c_in + rank, config_.rope.dims, stride, shared));
    NIBBLE_CHECK(inner_norm(c_in, rank, engine_->kv_norm(), c));
    NIBBLE_CHECK(kv_b_.forward(c, n, kv, 0, work));
    NIBBLE_CHECK(keep_rows(kv, kv_b_.rows(), 0, wide_kv));
    NIBBLE_CHECK(engine_->attend(q_in, q_stride, kv, c_in + rank, stride, kept[queries], kept[heads], step,
                                 reinterpret_cast<float*>(kept[log_sums])));
    if (work.cache) NIBBLE_CHECK(see(kept, work));
    return y ? out_.forward_rounded(kept[heads], n, y, work) : Status(Ok{});
}

// Builds K and V as rows, only to record their magnitudes.
Status TrainLatentAttention::see(std::span<std::byte* const> kept, TrainWork& work) const {
    DeviceStep& step = work.step;
    const DeviceScope scope(step);
    std::array<std::byte*, 4> rows{};
    for (std::byte*& r : rows) {
        NIBBLE_TRY(r, step.scratch.allocate(2 * step.rows * q_cols()));
    }
    NIBBLE_CHECK(cuda::latent_rows(shape(step),
                                   {.kv = kept[wide_kv],
                                    .shared = kept[shared],
                                    .o = kept[heads],
                                    .d_o = kept[heads],
                                    .k = rows[0],
                                    .v = rows[1],
                                    .wide_o = rows[2],
                                    .wide_d_o = rows[3]},
                                   step.stream));
    return work.cache->see({{{rows[0], q_cols()}, {rows[1], q_cols()}, {kept[queries], q_cols()}}}, step.stream);
}

Status TrainLatentAttention::normed(const std::byte* x, int64_t width, const float* weight, std::byte* y,
                                    TrainWork& work) const {
    return cuda::add_norm({.tokens = work.step.rows,
                           .width = width,
                           .h = const_cast<std::byte*>(x),
                           .weight = weight,
                           .eps = LatentAttention::eps_,
                           .out = {y}},
                          work.step.overlap, work.step.stream);
}

Status TrainLatentAttention::norm_back(const std::byte* x, int64_t width, const float* weight, const std::byte* dy,
                                       float* dx, float* dweight, TrainWork& work) const {
    return cuda::norm_backward({.tokens = work.step.rows,
                                .width = width,
                                .x = x,
                                .weight = weight,
                                .dy = dy,
                                .dx = dx,
                                .dweight = dweight,
                                .eps = LatentAttention::eps_,
                                .workspace = work.workspace},
                               work.step.stream);
}

Status TrainLatentAttention::to_first_product(std::span<std::byte* const> kept, const std::byte* dq,
                                              const std::byte* d_kv, const std::byte* d_shared, std::byte* d_in,
                                              float* gradient, TrainWork& work) const {
    DeviceStep& step = work.step;
    const DeviceScope scope(step);
    const int64_t n = step.rows, rank = config_.kv_rank;
    NIBBLE_TRY(std::byte * c, step.scratch.allocate(2 * n * rank));
    NIBBLE_TRY(std::byte * d_c, step.scratch.allocate(2 * n * rank));
    NIBBLE_TRY(float* d_latent, step.scratch.allocate_array<float>(n * rank));
    NIBBLE_CHECK(normed(kept[c_inner], rank, engine_->kv_norm(), c, work));
    NIBBLE_CHECK(kv_b_.backward(d_kv, c, n, d_c, gradient, false, work));
    NIBBLE_CHECK(norm_back(kept[c_inner], rank, engine_->kv_norm(), d_c, d_latent,
                           gradient_at(work.of_vectors, kv_norm_), work));
    cuda::LatentJoin join{.tokens = n,
                          .q_width = q_part_,
                          .c_width = rank,
                          .shared_width = config_.rope.dims,
                          .c = d_latent,
                          .shared = d_shared,
                          .out = d_in};
    if (!has_q_b_) {
        join.q_rows = dq;
        return cuda::latent_join(join, step.stream);
    }
    NIBBLE_TRY(std::byte * q_a, step.scratch.allocate(2 * n * q_part_));
    NIBBLE_TRY(std::byte * d_q_a, step.scratch.allocate(2 * n * q_part_));
    NIBBLE_TRY(float* d_inner, step.scratch.allocate_array<float>(n * q_part_));
    NIBBLE_CHECK(normed(kept[q_inner], q_part_, engine_->q_norm(), q_a, work));
    NIBBLE_CHECK(q_b_.backward(dq, q_a, n, d_q_a, gradient, false, work));
    NIBBLE_CHECK(norm_back(kept[q_inner], q_part_, engine_->q_norm(), d_q_a, d_inner,
                           gradient_at(work.of_vectors, q_norm_), work));
    join.q = d_inner;
    return cuda::latent_join(join, step.stream);
}

Status TrainLatentAttention::backward(const std::byte* x, std::span<std::byte* const> kept, const std::byte* dy,
                                      std::byte* dx, float* gradient, TrainWork& work) const {
    DeviceStep& step = work.step;
    const DeviceScope scope(step);
    const int64_t n = step.rows, wide = 2 * n * q_cols();
    NIBBLE_TRY(std::byte * d_heads, step.scratch.allocate(2 * n * v_cols()));
    NIBBLE_CHECK(out_.backward(dy, kept[heads], n, d_heads, gradient, false, work));
    std::byte *k = nullptr, *v = nullptr, *o = nullptr, *d_o = nullptr, *dq = nullptr, *dk = nullptr, *dv = nullptr;
    for (std::byte** rows : {&k, &v, &o, &d_o, &dq, &dk, &dv}) {
        NIBBLE_TRY(*rows, step.scratch.allocate(wide));
    }
    NIBBLE_TRY(std::byte * workspace, step.scratch.allocate(cuda::attention_backward_workspace(n, config_.heads)));
    const cuda::LatentShape latent = shape(step);
    NIBBLE_CHECK(cuda::latent_rows(latent,
                                   {.kv = kept[wide_kv],
                                    .shared = kept[shared],
                                    .o = kept[heads],
                                    .d_o = d_heads,
                                    .k = k,
                                    .v = v,
                                    .wide_o = o,
                                    .wide_d_o = d_o},
                                   step.stream));
    const TrainCacheRows::Sides rows{{{k, q_cols()}, {v, q_cols()}, {kept[queries], q_cols()}}};
    TrainCacheRows::Sides read = rows;
    if (work.cache) {
        NIBBLE_CHECK(work.cache->see(rows, step.stream));
        NIBBLE_TRY(read, work.cache->read(rows, step));
    }
    NIBBLE_CHECK(cuda::attention_backward({.tokens = n,
                                           .q_heads = config_.heads,
                                           .kv_heads = config_.heads,
                                           .dim = static_cast<int>(dim()),
                                           .scale = config_.scale,
                                           .first = work.first,
                                           .q = read[2].x,
                                           .k = read[0].x,
                                           .v = read[1].x,
                                           .o = o,
                                           .d_o = d_o,
                                           .log_sums = reinterpret_cast<const float*>(kept[log_sums]),
                                           .d_stride = q_cols(),
                                           .dq = dq,
                                           .dk = dk,
                                           .dv = dv,
                                           .workspace = workspace},
                                          step.stream));
    if (work.cache) NIBBLE_CHECK(work.cache->clear(rows, {dk, dv, dq}, q_cols(), step.stream));
    NIBBLE_TRY(std::byte * d_kv, step.scratch.allocate(2 * n * kv_b_.rows()));
    NIBBLE_TRY(std::byte * d_shared, step.scratch.allocate(2 * n * config_.rope.dims));
    NIBBLE_TRY(std::byte * d_in, step.scratch.allocate(2 * n * in_.rows()));
    NIBBLE_CHECK(
        cuda::latent_backward(latent, {.dq = dq, .dk = dk, .dv = dv, .d_kv = d_kv, .d_shared = d_shared}, step.stream));
    NIBBLE_CHECK(to_first_product(kept, dq, d_kv, d_shared, d_in, gradient, work));
    return in_.backward(d_in, x, n, dx, gradient, false, work);
}

Status TrainLatentAttention::publish(const std::byte* published, const Stream& stream) const {
    NIBBLE_CHECK(in_.publish(published, stream));
    if (has_q_b_) NIBBLE_CHECK(q_b_.publish(published, stream));
    NIBBLE_CHECK(kv_b_.publish(published, stream));
    return out_.publish(published, stream);
}

}  // namespace

Result<std::unique_ptr<TrainMixer>> make_train_mixer(const TrainMixerParts& parts,
                                                     const LatentAttentionConfig& config) {
    return TrainLatentAttention::make(parts, config);
}

}  // namespace nibble
