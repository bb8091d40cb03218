#include "model/cpu/attention.h"

#include "model/cpu/attend.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace nibble {

Result<std::unique_ptr<Mixer>> Attention::load(const ModelConfig& model, const BlockConfig& block,
                                               const AttentionConfig& c, WeightSource& weights) {
    auto a = std::make_unique<Attention>();
    a->prefix_ = block.prefix;
    a->index_ = block.index;
    a->config_ = c;
    a->eps_ = model.norm_eps;
    NIBBLE_TRY(a->kv_, weights.kv_shape(block.prefix, c.kv_heads, c.head_dim, c.head_dim));
    std::vector<WeightSource::Part> parts{
        {block.name(c.q_proj), c.q_rows()}, {block.name(c.k_proj), c.kv_cols()}, {block.name(c.v_proj), c.kv_cols()}};
    if (!c.qkv_proj.empty()) parts = {{block.name(c.qkv_proj), c.q_rows() + 2 * c.kv_cols()}};
    NIBBLE_TRY(a->qkv_, weights.stack(parts, model.hidden, c.qkv_bias));
    NIBBLE_TRY(a->out_, weights.linear(block.name(c.o_proj), model.hidden, a->q_cols(), c.out_bias));
    if (c.qk_norm != QkNorm::none) {
        a->q_norm_name_ = block.name(c.q_norm) + ".weight";
        a->k_norm_name_ = block.name(c.k_norm) + ".weight";
        NIBBLE_TRY(a->q_norm_, weights.norm(model, a->q_norm_name_, a->normed_cols(c.q_cols())));
        NIBBLE_TRY(a->k_norm_, weights.norm(model, a->k_norm_name_, a->normed_cols(c.kv_cols())));
    }
    return std::unique_ptr<Mixer>(std::move(a));
}

void Attention::norm_row(float* row, const Workspace& work) const {
    const auto norm = [&](float* x, int64_t cols, const std::vector<float>& w) {
        const auto n = static_cast<int64_t>(w.size());
        for (int64_t at = 0; at < cols; at += n)
            work.elementwise->rms_norm(x + at, w.data(), n, eps_, work.bf16(), x + at);
    };
    norm(row, q_cols(), q_norm_);
    norm(row + q_cols(), kv_cols(), k_norm_);
}

Attention::Gated Attention::split(float* projected, int64_t rows, Workspace& work) const {
    if (!config_.output_gate) return {projected, nullptr};
    const int64_t dim = config_.head_dim, width = cols();
    const Gated to{work.arena.floats(rows * width), work.arena.floats(rows * q_cols())};
    work.parallel_rows(rows, 2 * qkv_.rows(), [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
            const float* row = projected + i * qkv_.rows();
            for (int64_t h = 0; h < config_.heads; ++h) {
                std::copy_n(row + 2 * h * dim, dim, to.qkv + i * width + h * dim);
                std::copy_n(row + (2 * h + 1) * dim, dim, to.gate + i * q_cols() + h * dim);
            }
            std::copy_n(row + 2 * q_cols(), 2 * kv_cols(), to.qkv + i * width + q_cols());
        }
    });
    return to;
}

void Attention::apply_gate(const float* gate, int64_t rows, float* x, Workspace& work) const {
    const int64_t n = q_cols();
    work.parallel_rows(rows, 4 * n, [&](int64_t first, int64_t last) {
        const int64_t at = first * n;
        work.elementwise->gate(gate + at, x + at, (last - first) * n, work.bf16(), x + at);
    });
}

// q and k are adjacent, so one call rotates the heads of both.
void Attention::rotate_row(float* row, const float* cos, const float* sin, bool bf16, const Workspace& work) const {
    work.elementwise->rope(row, config_.heads + config_.kv_heads, config_.head_dim, cos, sin, config_.rope.dims,
                           config_.rope.interleaved, bf16);
}

void Attention::scale_query(float* q, int64_t position, bool bf16, const Workspace& work) const {
    if (config_.query_period == 0) return;
    const double steps = static_cast<double>(position / config_.query_period);
    const auto factor = static_cast<float>(1 + double{config_.query_beta} * std::log1p(steps));
    if (factor == 1.0f) return;
    for (int64_t i = 0; i < q_cols(); ++i) q[i] *= factor;
    if (bf16) work.elementwise->round_bf16(q, q_cols());
}

// Applies norm, rotary embedding and scale to q and k, in place.
void Attention::prepare_rows(const Batch& batch, float* qkv, Workspace& work) const {
    const int64_t stride = cols(), half = config_.rope.dims / 2;
    const bool late = config_.qk_norm == QkNorm::late, early = !late && config_.qk_norm != QkNorm::none;
    const RotaryRows rotary = half ? work.rotary(config_.rope, batch.positions()) : RotaryRows{};
    work.parallel_rows(batch.rows(), q_cols() + kv_cols(), [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
            float* row = qkv + i * stride;
            if (early) norm_row(row, work);
            if (half) rotate_row(row, rotary.cos + i * half, rotary.sin + i * half, work.bf16(), work);
            if (late) norm_row(row, work);
            scale_query(row, batch.positions()[static_cast<size_t>(i)], work.bf16(), work);
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
    const int64_t rows = batch.rows(), stride = cols();
    float* projected = work.arena.floats(rows * qkv_.rows());
    float* mixed = work.arena.floats(rows * q_cols());
    NIBBLE_CHECK(qkv_.forward(x, rows, projected, work, observer));
    const auto [qkv, gate] = split(projected, rows, work);
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
    if (gate) apply_gate(gate, rows, mixed, work);
    return out_.forward(mixed, rows, y, work, observer);
}

Result<std::unique_ptr<Mixer>> load_mixer(const ModelConfig& model, const BlockConfig& block,
                                          const AttentionConfig& config, WeightSource& weights) {
    return Attention::load(model, block, config, weights);
}

}  // namespace nibble
