#include "model/cpu/attention.h"

#include "model/cpu/attend.h"

#include <algorithm>
#include <array>

namespace nibble {

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

std::vector<const Linear*> Attention::linears() const {
    std::vector<const Linear*> list;
    for (const Linear& part : qkv_.parts) list.push_back(&part);
    list.push_back(&out_);
    return list;
}

std::vector<std::span<const Linear>> Attention::units() const { return {qkv_.parts, {&out_, 1}}; }

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
        work.parallel_rows(rows, 2 * kv_cols(), [&](int64_t first, int64_t last) {
            for (int64_t i = first; i < last; ++i) {
                const float* row = qkv + i * stride + q_cols();
                std::copy(row, row + kv_cols(), k + i * kv_cols());
                std::copy(row + kv_cols(), row + 2 * kv_cols(), v + i * kv_cols());
            }
        });
        NIBBLE_CHECK(observer->kv(prefix_, k, v, rows, kv_cols(), kv_cols()));
        NIBBLE_CHECK(observer->queries(prefix_, qkv, rows, q_cols(), stride));
    }
    attend(batch, index_, shape(work), qkv, stride, qkv + q_cols(), stride, qkv + q_cols() + kv_cols(), stride, mixed,
           work);
    return out_.forward(mixed, rows, y, work, observer);
}

Result<std::unique_ptr<Mixer>> load_mixer(const ModelConfig& model, const BlockConfig& block,
                                          const AttentionConfig& config, WeightSource& weights) {
    return Attention::load(model, block, config, weights);
}

}  // namespace nibble
