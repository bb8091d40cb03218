#include "model/cpu/attention.h"

#include "formats/minifloat.h"
#include "kernels/exp.h"
#include "model/cpu/attend.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace nibble {
namespace {

// Returns whether a rank can compute its heads alone. A norm over all heads needs whole rows of q and k on every rank;
// so does an indexer, whose keys lie in the pages of K and V of all heads.
bool computes_own_heads(const AttentionConfig& c) { return c.qk_norm != QkNorm::joined && !c.indexer; }

}  // namespace

Result<std::unique_ptr<Mixer>> Attention::load(const ModelConfig& model, const BlockConfig& block,
                                               const AttentionConfig& c, WeightSource& weights) {
    auto a = std::make_unique<Attention>();
    a->prefix_ = block.prefix;
    a->index_ = block.index;
    a->config_ = c;
    a->eps_ = model.norm_eps;
    auto outputs = WeightSource::Outputs::gathered;
    if (const RankShare* share = weights.share(); share && computes_own_heads(c)) {
        outputs = WeightSource::Outputs::own;
        const std::string q = block.name(c.qkv_proj.empty() ? c.q_proj : c.qkv_proj) + ".weight";
        a->config_.heads = static_cast<int>(share->own_parts(q));
        a->config_.kv_heads = std::max(1, c.kv_heads / share->size());
        a->heads_ = share->columns_like(q, c.out_cols());
    }
    NIBBLE_TRY(a->kv_, weights.kv_shape(c.kv_block < 0 ? block.prefix : c.kv_prefix, a->config_.kv_heads, c.head_dim,
                                        c.value_dim()));
    std::vector<WeightSource::Part> parts{{block.name(c.q_proj), c.q_rows()}, {block.name(c.k_proj), c.kv_cols()}};
    if (!c.v_proj.empty()) parts.push_back({block.name(c.v_proj), c.v_cols()});
    if (!c.qkv_proj.empty()) parts = {{block.name(c.qkv_proj), c.q_rows() + c.kv_cols() + c.v_cols()}};
    if (c.kv_block >= 0) parts.resize(1);
    NIBBLE_TRY(a->qkv_, weights.stack(parts, model.hidden, c.qkv_bias, outputs));
    NIBBLE_TRY(a->out_, weights.linear(block.name(c.o_proj), model.hidden, c.out_cols(), c.out_bias));
    a->ones_.assign(static_cast<size_t>(std::max(c.head_dim, c.value_dim())), 1.0f);
    if (!c.sinks.empty()) {
        const std::string sinks = block.name(c.sinks);
        NIBBLE_TRY(a->sinks_, a->heads_ ? weights.own_vector(sinks, c.heads) : weights.vector(sinks, c.heads));
    }
    if (!c.head_gate.empty()) {
        NIBBLE_TRY(a->head_gate_, weights.linear(block.name(c.head_gate), c.heads, model.hidden, false, outputs));
    }
    if (c.qk_norm == QkNorm::late_plain) {
        a->q_norm_ = a->k_norm_ = std::vector<float>(a->ones_.begin(), a->ones_.begin() + c.head_dim);
    } else if (c.qk_norm != QkNorm::none) {
        a->q_norm_name_ = block.name(c.q_norm) + ".weight";
        a->k_norm_name_ = block.name(c.k_norm) + ".weight";
        NIBBLE_TRY(a->q_norm_, weights.norm(model, a->q_norm_name_, a->normed_cols(c.q_cols())));
        if (c.kv_block < 0) {
            NIBBLE_TRY(a->k_norm_, weights.norm(model, a->k_norm_name_, a->normed_cols(c.kv_cols())));
        }
    }
    if (c.indexer) {
        NIBBLE_TRY(a->indexer_, Indexer::load(model, block, *c.indexer, 0, a->kv_, weights));
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
    if (!k_norm_.empty()) norm(row + q_cols(), kv_cols(), k_norm_);
}

Attention::Gated Attention::split(float* projected, int64_t rows, Workspace& work) const {
    if (!config_.output_gate) return {with_values(projected, rows, work), nullptr};
    const int64_t dim = config_.head_dim, width = cols();
    const Gated to{work.arena.floats(rows * width), work.arena.floats(rows * q_cols())};
    work.parallel_rows(rows, 2 * qkv_.rows(), [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
            const float* row = projected + i * qkv_.rows();
            for (int64_t h = 0; h < config_.heads; ++h) {
                std::copy_n(row + 2 * h * dim, dim, to.qkv + i * width + h * dim);
                std::copy_n(row + (2 * h + 1) * dim, dim, to.gate + i * q_cols() + h * dim);
            }
            std::copy_n(row + 2 * q_cols(), kv_cols() + v_cols(), to.qkv + i * width + q_cols());
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
    const int64_t heads = config_.heads + (config_.kv_block < 0 ? config_.kv_heads : 0);
    work.elementwise->rope(row, heads, config_.head_dim, cos, sin, config_.rope.dims, config_.rope.interleaved, bf16);
}

void Attention::scale_query(float* q, int64_t position, bool bf16, const Workspace& work) const {
    if (config_.query_period == 0) return;
    const double steps = static_cast<double>((position + config_.query_offset) / config_.query_period);
    const auto factor = static_cast<float>(1 + double{config_.query_beta} * std::log1p(steps));
    if (factor == 1.0f) return;
    for (int64_t i = 0; i < q_cols(); ++i) q[i] *= factor;
    if (bf16) work.elementwise->round_bf16(q, q_cols());
}

float* Attention::with_values(float* projected, int64_t rows, Workspace& work) const {
    if (!config_.v_proj.empty() || config_.kv_block >= 0) return projected;
    const int64_t from = qkv_.rows(), width = cols();
    float* all = work.arena.floats(rows * width);
    work.parallel_rows(rows, 2 * width, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
            float* row = std::copy_n(projected + i * from, from, all + i * width);
            std::copy_n(projected + i * from + q_cols(), kv_cols(), row);
        }
    });
    return all;
}

void Attention::scale_keys(float* k, bool bf16, const Workspace& work) const {
    if (config_.key_scale == 1.0f) return;
    for (int64_t i = 0; i < kv_cols(); ++i) k[i] *= config_.key_scale;
    if (bf16) work.elementwise->round_bf16(k, kv_cols());
}

void Attention::prepare_values(float* v, const Workspace& work) const {
    const int64_t n = v_cols(), dim = config_.value_dim();
    if (config_.value_norm)
        for (int64_t at = 0; at < n; at += dim)
            work.elementwise->rms_norm(v + at, ones_.data(), dim, eps_, work.bf16(), v + at);
    if (config_.value_scale == 1.0f) return;
    for (int64_t i = 0; i < n; ++i) v[i] *= config_.value_scale;
    if (work.bf16()) work.elementwise->round_bf16(v, n);
}

Status Attention::gate_heads(const float* x, int64_t rows, float* mixed, Workspace& work, Observer* observer) const {
    const Arena::Scope scope(work.arena);
    const int64_t heads = config_.heads, dim = config_.value_dim();
    float* gates = work.arena.floats(rows * heads);
    NIBBLE_CHECK(head_gate_->forward(x, rows, gates, work, observer));
    work.parallel_rows(rows, 2 * heads * dim, [&](int64_t first, int64_t last) {
        for (int64_t i = first * heads; i < last * heads; ++i) {
            float gate = 1.0f / (1.0f + exp_f32(-gates[i]));
            if (work.bf16()) gate = round_to_bf16(gate);
            for (int64_t j = i * dim; j < (i + 1) * dim; ++j) mixed[j] *= gate;
        }
        if (work.bf16()) work.elementwise->round_bf16(mixed + first * heads * dim, (last - first) * heads * dim);
    });
    return Ok{};
}

// Applies scale, norm and rotary embedding to q and k, norm and scale to v, in place.
void Attention::prepare_rows(const Batch& batch, float* qkv, Workspace& work) const {
    const int64_t stride = cols(), half = config_.rope.dims / 2;
    const bool late = config_.qk_norm == QkNorm::late || config_.qk_norm == QkNorm::late_plain;
    const bool early = !late && config_.qk_norm != QkNorm::none;
    const RotaryRows rotary = half ? work.rotary(config_.rope, batch.positions()) : RotaryRows{};
    work.parallel_rows(batch.rows(), q_cols() + kv_cols(), [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
            float* row = qkv + i * stride;
            scale_keys(row + q_cols(), work.bf16(), work);
            if (early) norm_row(row, work);
            if (half) rotate_row(row, rotary.cos + i * half, rotary.sin + i * half, work.bf16(), work);
            if (late) norm_row(row, work);
            scale_query(row, batch.positions()[static_cast<size_t>(i)], work.bf16(), work);
            prepare_values(row + q_cols() + kv_cols(), work);
        }
    });
}

std::vector<const Linear*> Attention::linears() const {
    std::vector<const Linear*> list;
    for (const Linear& part : qkv_.parts) list.push_back(&part);
    if (head_gate_) list.push_back(&*head_gate_);
    list.push_back(&out_);
    if (indexer_)
        for (const Linear* linear : indexer_->linears()) list.push_back(linear);
    return list;
}

std::vector<std::span<const Linear>> Attention::units() const {
    std::vector<std::span<const Linear>> all{qkv_.parts};
    if (head_gate_) all.push_back({&*head_gate_, 1});
    all.push_back({&out_, 1});
    if (indexer_)
        for (const Linear* linear : indexer_->linears()) all.push_back({linear, 1});
    return all;
}

Status Attention::forward(const Batch& batch, const float* x, float* y, Workspace& work, Observer* observer) const {
    const Arena::Scope scope(work.arena);
    const int64_t rows = batch.rows(), stride = cols();
    float* projected = work.arena.floats(rows * qkv_.rows());
    float* mixed = work.arena.floats(rows * config_.out_cols());
    NIBBLE_CHECK(qkv_.forward(x, rows, projected, work, observer));
    const Gated gated = split(projected, rows, work);
    float* const qkv = gated.qkv;
    prepare_rows(batch, qkv, work);
    if (observer && config_.kv_block < 0) {
        const Arena::Scope copies(work.arena);
        float* k = work.arena.floats(rows * kv_cols());
        float* v = work.arena.floats(rows * v_cols());
        work.parallel_rows(rows, 2 * kv_cols(), [&](int64_t first, int64_t last) {
            for (int64_t i = first; i < last; ++i) {
                const float* row = qkv + i * stride + q_cols();
                std::copy(row, row + kv_cols(), k + i * kv_cols());
                std::copy_n(row + kv_cols(), v_cols(), v + i * v_cols());
            }
        });
        NIBBLE_CHECK(observer->kv(prefix_, k, v, rows, kv_cols(), v_cols()));
    }
    if (observer) NIBBLE_CHECK(observer->queries(prefix_, qkv, rows, q_cols(), stride));
    if (config_.kv_block >= 0) {
        NIBBLE_CHECK(check_borrowed(batch, config_.kv_block, work).within(prefix_));
        attend(batch, config_.kv_block, shape(work), qkv, stride, nullptr, 0, nullptr, 0, mixed, work,
               KvOwner::borrowed);
    } else {
        KeyChoice choice;
        if (indexer_) {
            NIBBLE_TRY(choice, indexer_->choose(batch, x, nullptr, work, observer));
        }
        attend(batch, index_, shape(work), qkv, stride, qkv + q_cols(), stride, qkv + q_cols() + kv_cols(), stride,
               mixed, work, config_.kv_shared ? KvOwner::shared : KvOwner::own, choice);
    }
    if (gated.gate) apply_gate(gated.gate, rows, mixed, work);
    if (head_gate_) NIBBLE_CHECK(gate_heads(x, rows, mixed, work, observer));
    return forward_gathered(out_, heads_.get(), mixed, rows, y, work, observer);
}

Result<std::unique_ptr<Mixer>> load_mixer(const ModelConfig& model, const BlockConfig& block,
                                          const AttentionConfig& config, WeightSource& weights) {
    return Attention::load(model, block, config, weights);
}

}  // namespace nibble
