// Multi-head attention with grouped queries: q/k/v as one product, optional norm of q and k per head, rotary embedding,
// the cache, o_proj.
#include "model/block.h"
#include "model/sequence.h"
#include "model/weight_source.h"

#include <algorithm>
#include <array>

namespace nibble {
namespace {

class Attention : public Mixer {
public:
    static Result<std::unique_ptr<Mixer>> load(const ModelConfig& model, const BlockConfig& block,
                                               const AttentionConfig& c, WeightSource& weights);

    Status forward(const Batch& batch, const float* x, float* y, Workspace& work, Observer* observer) const override;
    Status backward(const Batch&, const float*, const float*, float*, Workspace&, Observer*,
                    GradientSink*) const override {
        return fail("{}: attention has no backward pass", prefix_);
    }
    std::vector<const Linear*> linears() const override {
        std::vector<const Linear*> list;
        for (const Linear& part : qkv_.parts) list.push_back(&part);
        list.push_back(&out_);
        return list;
    }
    StateLayout state() const override { return {kv_, config_.window, 0}; }

private:
    int64_t q_cols() const { return int64_t{config_.heads} * config_.head_dim; }
    int64_t kv_cols() const { return int64_t{config_.kv_heads} * config_.head_dim; }
    void prepare_rows(const Batch& batch, float* qkv, Workspace& work) const;
    void attend(const Batch& batch, const float* qkv, float* y, Workspace& work) const;

    std::string prefix_;
    int index_ = 0;
    AttentionConfig config_;
    KvShape kv_;
    float eps_ = 0;
    LinearStack qkv_;
    Linear out_;
    std::vector<float> q_norm_, k_norm_;  // as they multiply; empty: none
};

Result<std::unique_ptr<Mixer>> Attention::load(const ModelConfig& model, const BlockConfig& block,
                                               const AttentionConfig& c, WeightSource& weights) {
    auto a = std::make_unique<Attention>();
    a->prefix_ = block.prefix;
    a->index_ = block.index;
    a->config_ = c;
    a->eps_ = model.norm_eps;
    NIBBLE_TRY(a->kv_, weights.kv_shape(block.prefix, c.kv_heads, c.head_dim, c.head_dim));
    const std::array<WeightSource::Part, 3> parts{{{block.prefix + ".q_proj", a->q_cols()},
                                                   {block.prefix + ".k_proj", a->kv_cols()},
                                                   {block.prefix + ".v_proj", a->kv_cols()}}};
    NIBBLE_TRY(a->qkv_, weights.stack(parts, model.hidden, c.qkv_bias));
    NIBBLE_TRY(a->out_, weights.linear(block.prefix + ".o_proj", model.hidden, a->q_cols(), c.out_bias));
    if (c.qk_norm) {
        NIBBLE_TRY(a->q_norm_, weights.norm(model, block.prefix + ".q_norm.weight", c.head_dim));
        NIBBLE_TRY(a->k_norm_, weights.norm(model, block.prefix + ".k_norm.weight", c.head_dim));
    }
    return std::unique_ptr<Mixer>(std::move(a));
}

// Norm and rotary embedding of q and k, in place.
void Attention::prepare_rows(const Batch& batch, float* qkv, Workspace& work) const {
    const ElementwiseKernels& k = *work.elementwise;
    const int64_t stride = qkv_.rows(), dim = config_.head_dim, half = config_.rope.dims / 2;
    const RotaryRows rotary = half ? work.rotary(config_.rope, batch.positions()) : RotaryRows{};
    work.parallel_rows(batch.rows(), q_cols() + kv_cols(), [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
            float* row = qkv + i * stride;
            if (!q_norm_.empty()) {
                for (int64_t h = 0; h < config_.heads; ++h)
                    k.rms_norm(row + h * dim, q_norm_.data(), dim, eps_, work.bf16(), row + h * dim);
                for (int64_t h = config_.heads; h < config_.heads + config_.kv_heads; ++h)
                    k.rms_norm(row + h * dim, k_norm_.data(), dim, eps_, work.bf16(), row + h * dim);
            }
            // q and k lie side by side: one run of heads.
            if (half)
                k.rope(row, config_.heads + config_.kv_heads, dim, rotary.cos + i * half, rotary.sin + i * half,
                       config_.rope.dims, config_.rope.interleaved, work.bf16());
        }
    });
}

// Stores K and V, then attends. A segment without a sequence gets pages of scratch memory: the same kernel, the same
// rounding.
void Attention::attend(const Batch& batch, const float* qkv, float* y, Workspace& work) const {
    const int64_t stride = qkv_.rows();
    std::vector<AttentionJob> jobs;
    std::vector<std::byte* const*> pages_of;
    for (size_t s = 0; s < batch.segments().size(); ++s) {
        const Segment& segment = batch.segments()[s];
        const auto rows = static_cast<int64_t>(segment.tokens.size());
        const float* q = qkv + batch.row(s) * stride;
        std::byte* const* pages = nullptr;
        if (segment.sequence) {
            pages = segment.sequence->pages(index_).data();
        } else {
            const int64_t tiles = (rows + kv_page_tokens - 1) / kv_page_tokens, bytes = kv_page_bytes(kv_);
            auto** table = work.arena.array<std::byte*>(tiles);
            std::byte* memory = work.arena.bytes(tiles * bytes);
            for (int64_t t = 0; t < tiles; ++t) table[t] = memory + t * bytes;
            pages = table;
        }
        pages_of.push_back(pages);
        jobs.push_back({q, y + batch.row(s) * q_cols(), stride, q_cols(), rows, batch.position(s), pages});
    }
    for (size_t s = 0; s < jobs.size(); ++s) {
        const AttentionJob& job = jobs[s];
        const float* k = job.q + q_cols();
        work.parallel_rows(job.rows, 8 * kv_cols(), [&](int64_t first, int64_t last) {
            kv_store(kv_, pages_of[s], job.position + first, last - first, k + first * stride, stride,
                     k + first * stride + kv_cols(), stride);
        });
    }
    const AttentionShape shape{kv_, config_.heads, config_.scale, config_.window, work.bf16()};
    work.attention->attend(shape, jobs, *work.pool);
}

Status Attention::forward(const Batch& batch, const float* x, float* y, Workspace& work, Observer* observer) const {
    const Arena::Scope scope(work.arena);
    const int64_t rows = batch.rows(), stride = qkv_.rows();
    float* qkv = work.arena.floats(rows * stride);
    float* mixed = work.arena.floats(rows * q_cols());
    NIBBLE_CHECK(qkv_.forward(x, rows, qkv, work, observer));
    prepare_rows(batch, qkv, work);
    if (observer) {
        const Arena::Scope copies(work.arena);
        float* k = work.arena.floats(rows * kv_cols());
        float* v = work.arena.floats(rows * kv_cols());
        for (int64_t i = 0; i < rows; ++i) {
            const float* row = qkv + i * stride + q_cols();
            std::copy(row, row + kv_cols(), k + i * kv_cols());
            std::copy(row + kv_cols(), row + 2 * kv_cols(), v + i * kv_cols());
        }
        NIBBLE_CHECK(observer->kv(prefix_, k, v, rows, kv_cols(), kv_cols()));
    }
    attend(batch, qkv, mixed, work);
    return out_.forward(mixed, rows, y, work, observer);
}

}  // namespace

Result<std::unique_ptr<Mixer>> load_mixer(const ModelConfig& model, const BlockConfig& block,
                                          const AttentionConfig& config, WeightSource& weights) {
    return Attention::load(model, block, config, weights);
}

}  // namespace nibble
