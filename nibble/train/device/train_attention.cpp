// kept: q, k and v before norms and rotary embedding, rounded to BF16; the output of attention; the logarithms of its
// softmax sums.
#include "kernels/attention_backward_cuda.h"
#include "model/device/attention.h"
#include "train/device/device_cache.h"
#include "train/device/train_mixer.h"

#include <algorithm>

namespace nibble {
namespace {

class TrainAttention : public TrainMixer {
public:
    static Result<std::unique_ptr<TrainMixer>> make(const TrainMixerParts& parts, const AttentionConfig& config);

    Result<TrainMixerSizes> sizes(int64_t n) const override;
    Status forward(const std::byte* x, std::span<std::byte* const> kept, bool keep, std::byte* y,
                   TrainWork& work) const override;
    Status backward(const std::byte* x, std::span<std::byte* const> kept, const std::byte* dy, std::byte* dx,
                    float* gradient, TrainWork& work) const override;
    bool reads_amax(int64_t n) const override { return qkv_.reads_amax(n); }
    Status publish(const std::byte* published, const Stream& stream) const override {
        NIBBLE_CHECK(qkv_.publish(published, stream));
        return out_.publish(published, stream);
    }

private:
    int64_t q_cols() const { return int64_t{config_.heads} * config_.head_dim; }
    int64_t kv_cols() const { return int64_t{config_.kv_heads} * config_.head_dim; }
    cuda::RopeRows rope_rows(const std::byte* qkv, std::byte* q, std::byte* k, std::byte* v,
                             const DeviceStep& step) const;

    std::string prefix_;
    float eps_ = 0;
    AttentionConfig config_;
    const DeviceAttention* engine_ = nullptr;
    TrainLinear qkv_, out_;
    int64_t q_norm_ = 0, k_norm_ = 0;  // offsets in the flat arrays
    bool cached_ = false;
};

Result<std::unique_ptr<TrainMixer>> TrainAttention::make(const TrainMixerParts& parts, const AttentionConfig& config) {
    auto t = std::make_unique<TrainAttention>();
    auto& engine = static_cast<DeviceAttention&>(*parts.layer.mixer);
    t->prefix_ = parts.layer.config.prefix;
    t->eps_ = parts.model.norm_eps;
    t->config_ = config;
    t->engine_ = &engine;
    t->cached_ = parts.cached;
    NIBBLE_TRY(t->qkv_, TrainLinear::of(parts.units[0], engine.in(), parts.vectors));
    t->out_ = TrainLinear(parts.units[1], engine.out(), parts.vectors);
    if (config.qk_norm != QkNorm::none) {
        NIBBLE_TRY(t->q_norm_, parts.vectors.place(parts.layer.config.name(config.q_norm) + ".weight"));
        NIBBLE_TRY(t->k_norm_, parts.vectors.place(parts.layer.config.name(config.k_norm) + ".weight"));
        if (t->q_norm_ >= 0) engine.use_norms(parts.vectors.at(t->q_norm_), parts.vectors.at(t->k_norm_));
    }
    return std::unique_ptr<TrainMixer>(std::move(t));
}

Result<TrainMixerSizes> TrainAttention::sizes(int64_t n) const {
    if (!cuda::has_attention_backward(config_.head_dim))
        return fail("--device cuda does not train heads of {} dimensions yet ({})", config_.head_dim, prefix_);
    const int64_t wide = qkv_.rows(), heads = q_cols(),
                  cached = cached_ ? 2 * whole(2 * n * kv_cols()) + whole(2 * n * heads) : 0;
    return TrainMixerSizes{
        .kept = {2 * n * wide, 2 * n * heads, 4 * n * config_.heads},
        .forward = whole(2 * n * wide) + whole(qkv_.rounded_bytes(n)) + whole(2 * n * heads) + cached +
                   whole(out_.rounded_bytes(n)),
        .backward = 2 * whole(2 * n * heads) + 2 * whole(2 * n * kv_cols()) + whole(2 * n * wide) + cached +
                    whole(cuda::attention_backward_workspace(n, config_.heads)),
        .workspace = std::max({cuda::rope_backward_workspace(config_.head_dim), qkv_.workspace(), out_.workspace()})};
}

cuda::RopeRows TrainAttention::rope_rows(const std::byte* qkv, std::byte* q, std::byte* k, std::byte* v,
                                         const DeviceStep& step) const {
    const DeviceRotary rotary = step.rotary_of(config_.rope);
    return {.tokens = step.rows,
            .q_heads = config_.heads,
            .kv_heads = config_.kv_heads,
            .dim = config_.head_dim,
            .qkv = qkv,
            .q_norm = engine_->q_norm(),
            .k_norm = engine_->k_norm(),
            .eps = eps_,
            .rope_dims = config_.rope.dims,
            .interleaved = config_.rope.interleaved,
            .positions = step.positions,
            .cos = rotary.cos,
            .sin = rotary.sin,
            .q = q,
            .k = k,
            .v = v};
}

Status TrainAttention::forward(const std::byte* x, std::span<std::byte* const> kept, bool keep, std::byte* y,
                               TrainWork& work) const {
    DeviceStep& step = work.step;
    const DeviceScope scope(step);
    const int64_t n = step.rows;
    std::byte* qkv = kept[0];
    if (!keep) {
        NIBBLE_TRY(qkv, step.scratch.allocate(2 * n * qkv_.rows()));
    }
    NIBBLE_TRY(std::byte * q, step.scratch.allocate(2 * n * q_cols()));
    NIBBLE_CHECK(qkv_.forward_rounded(x, n, qkv, work, work.amax));
    cuda::RopeAppend append = engine_->rope_append(nullptr, q, step);
    append.qkv_rows = qkv;
    NIBBLE_CHECK(cuda::rope_append(append, engine_->cache(step), step.overlap, step.stream));
    if (work.cache) {
        NIBBLE_TRY(std::byte * k, step.scratch.allocate(2 * n * kv_cols()));
        NIBBLE_TRY(std::byte * v, step.scratch.allocate(2 * n * kv_cols()));
        NIBBLE_CHECK(cuda::rope_rows(rope_rows(qkv, q, k, v, step), step.stream));
        NIBBLE_CHECK(work.cache->see({{{k, kv_cols()}, {v, kv_cols()}, {q, q_cols()}}}, step.stream));
    }
    NIBBLE_CHECK(engine_->attend(q, kept[1], step, reinterpret_cast<float*>(kept[2])));
    if (!y) return Ok{};
    return out_.forward_rounded(kept[1], n, y, work);
}

Status TrainAttention::backward(const std::byte* x, std::span<std::byte* const> kept, const std::byte* dy,
                                std::byte* dx, float* gradient, TrainWork& work) const {
    DeviceStep& step = work.step;
    const DeviceScope scope(step);
    const AttentionConfig& c = config_;
    const int64_t n = step.rows, width = qkv_.rows();
    NIBBLE_TRY(std::byte * d_heads, step.scratch.allocate(2 * n * q_cols()));
    NIBBLE_TRY(std::byte * q, step.scratch.allocate(2 * n * q_cols()));
    NIBBLE_TRY(std::byte * k, step.scratch.allocate(2 * n * kv_cols()));
    NIBBLE_TRY(std::byte * v, step.scratch.allocate(2 * n * kv_cols()));
    NIBBLE_TRY(std::byte * d_qkv, step.scratch.allocate(2 * n * width));
    NIBBLE_TRY(std::byte * workspace, step.scratch.allocate(cuda::attention_backward_workspace(n, c.heads)));
    NIBBLE_CHECK(out_.backward(dy, kept[1], n, d_heads, gradient, false, work));
    const cuda::RopeRows rope = rope_rows(kept[0], q, k, v, step);
    NIBBLE_CHECK(cuda::rope_rows(rope, step.stream));
    const TrainCacheRows::Sides rows{{{k, kv_cols()}, {v, kv_cols()}, {q, q_cols()}}};
    TrainCacheRows::Sides read = rows;
    if (work.cache) {
        NIBBLE_CHECK(work.cache->see(rows, step.stream));
        NIBBLE_TRY(read, work.cache->read(rows, step));
    }
    std::byte *dk = d_qkv + 2 * q_cols(), *dv = d_qkv + 2 * (q_cols() + kv_cols());
    NIBBLE_CHECK(cuda::attention_backward({.tokens = n,
                                           .q_heads = c.heads,
                                           .kv_heads = c.kv_heads,
                                           .dim = c.head_dim,
                                           .scale = c.scale,
                                           .window = c.window,
                                           .first = work.first,
                                           .q = read[2].x,
                                           .k = read[0].x,
                                           .v = read[1].x,
                                           .o = kept[1],
                                           .d_o = d_heads,
                                           .log_sums = reinterpret_cast<const float*>(kept[2]),
                                           .d_stride = width,
                                           .dq = d_qkv,
                                           .dk = dk,
                                           .dv = dv,
                                           .workspace = workspace},
                                          step.stream));
    if (work.cache) NIBBLE_CHECK(work.cache->clear(rows, {dk, dv, d_qkv}, width, step.stream));
    const bool normed = c.qk_norm != QkNorm::none;
    NIBBLE_CHECK(cuda::rope_backward(rope, d_qkv, normed ? gradient_at(work.of_vectors, q_norm_) : nullptr,
                                     normed ? gradient_at(work.of_vectors, k_norm_) : nullptr, work.workspace,
                                     step.stream));
    return qkv_.backward(d_qkv, x, n, dx, gradient, false, work);
}

}  // namespace

Result<std::unique_ptr<TrainMixer>> make_train_mixer(const TrainMixerParts& parts, const AttentionConfig& config) {
    return TrainAttention::make(parts, config);
}

}  // namespace nibble
