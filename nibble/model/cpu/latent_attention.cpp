#include "model/cpu/latent_attention.h"

#include "model/cpu/attend.h"

#include <algorithm>
#include <cmath>

namespace nibble {

Result<std::unique_ptr<Mixer>> load_mixer(const ModelConfig& model, const BlockConfig& block,
                                          const LatentAttentionConfig& config, WeightSource& weights) {
    return LatentAttention::load(model, block, config, weights);
}

Result<std::unique_ptr<Mixer>> LatentAttention::load(const ModelConfig& model, const BlockConfig& block,
                                                     const LatentAttentionConfig& c, WeightSource& weights) {
    const std::string& prefix = block.prefix;
    const int64_t hidden = model.hidden;
    auto a = std::make_unique<LatentAttention>();
    a->prefix_ = prefix;
    a->hidden_ = hidden;
    a->index_ = block.index;
    a->config_ = c;
    const int64_t q_rows = c.heads * a->k_dim(), kv_a_rows = c.kv_rank + c.rope.dims;
    const std::string kv_b = prefix + ".kv_b_proj";
    auto outputs = WeightSource::Outputs::gathered;
    // The keys of an indexer lie in the pages of all heads.
    if (const RankShare* share = weights.share(); share && !c.indexer) {
        outputs = WeightSource::Outputs::own;
        a->config_.heads = static_cast<int>(share->own_parts(kv_b + ".weight"));
        a->heads_ = share->columns_like(kv_b + ".weight", int64_t{c.heads} * c.v_dim);
    }
    if (c.q_rank == 0 && c.bias) return fail("{}: attention_bias without q_lora_rank", prefix);
    const WeightSource::Part in[] = {
        {prefix + (c.q_rank > 0 ? ".q_a_proj" : ".q_proj"), c.q_rank > 0 ? c.q_rank : q_rows},
        {prefix + ".kv_a_proj_with_mqa", kv_a_rows}};
    NIBBLE_TRY(a->in_, weights.stack(in, hidden, c.bias, outputs));
    if (c.q_rank > 0) {
        NIBBLE_TRY(a->q_norm_, weights.vector(prefix + ".q_a_layernorm.weight", c.q_rank));
        NIBBLE_TRY(a->q_b_, weights.linear(prefix + ".q_b_proj", q_rows, c.q_rank, false, outputs));
    }
    NIBBLE_TRY(a->kv_norm_, weights.vector(prefix + ".kv_a_layernorm.weight", c.kv_rank));
    NIBBLE_TRY(a->kv_b_, weights.linear(kv_b, int64_t{c.heads} * (c.nope_dim + c.v_dim), c.kv_rank, false, outputs));
    NIBBLE_TRY(a->o_, weights.linear(prefix + ".o_proj", hidden, int64_t{c.heads} * c.v_dim, c.bias));
    NIBBLE_TRY(a->kv_, weights.kv_shape(prefix, a->config_.heads, static_cast<int>(a->k_dim()), c.v_dim));
    if (c.indexer) {
        NIBBLE_TRY(a->indexer_, Indexer::load(model, block, *c.indexer, c.q_rank, a->kv_, weights));
    }
    return std::unique_ptr<Mixer>(std::move(a));
}

std::vector<const Linear*> LatentAttention::linears() const {
    std::vector<const Linear*> all;
    for (const Linear& part : in_.parts) all.push_back(&part);
    if (q_b_) all.push_back(&*q_b_);
    all.push_back(&kv_b_);
    all.push_back(&o_);
    if (indexer_)
        for (const Linear* linear : indexer_->linears()) all.push_back(linear);
    return all;
}

std::vector<std::span<const Linear>> LatentAttention::units() const {
    std::vector<std::span<const Linear>> all{in_.parts};
    if (q_b_) all.push_back({&*q_b_, 1});
    all.push_back({&kv_b_, 1});
    all.push_back({&o_, 1});
    if (indexer_)
        for (const Linear* linear : indexer_->linears()) all.push_back({linear, 1});
    return all;
}

void LatentAttention::norm_rows(const float* x, int64_t stride, const std::vector<float>& w, int64_t rows, float* y,
                                Workspace& work) const {
    const auto n = static_cast<int64_t>(w.size());
    work.parallel_rows(rows, 3 * n, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i)
            work.elementwise->rms_norm(x + i * stride, w.data(), n, eps_, work.bf16(), y + i * n);
    });
}

void LatentAttention::scale_query(float* q, int64_t position, bool bf16, const Workspace& work) const {
    if (config_.query_period == 0) return;
    const double steps = static_cast<double>(position / config_.query_period);
    const auto factor = static_cast<float>(1 + double{config_.query_beta} * std::log1p(steps));
    if (factor == 1.0f) return;
    const int64_t n = config_.heads * k_dim();
    for (int64_t i = 0; i < n; ++i) q[i] *= factor;
    if (bf16) work.elementwise->round_bf16(q, n);
}

Result<LatentAttention::Projected> LatentAttention::project(const Batch& batch, const float* x, Workspace& work,
                                                            Observer* observer) const {
    const int64_t rows = batch.rows(), heads = config_.heads, dim = k_dim(), nope = config_.nope_dim;
    const int64_t v_dim = config_.v_dim, rope = config_.rope.dims, rank = config_.kv_rank;
    const RotaryRows rotary = config_.rotates ? work.rotary(config_.rope, batch.positions()) : RotaryRows{};
    Projected p{.in = work.arena.floats(rows * in_.rows()),
                .q_a = work.arena.floats(rows * config_.q_rank),
                .c = work.arena.floats(rows * rank),
                .q = work.arena.floats(rows * heads * dim),
                .k = work.arena.floats(rows * heads * dim),
                .v = work.arena.floats(rows * heads * v_dim)};
    NIBBLE_CHECK(in_.forward(x, rows, p.in, work, observer));
    const int64_t stride = in_.rows(), q_part = in_.parts[0].rows;
    if (q_b_) {
        norm_rows(p.in, stride, q_norm_, rows, p.q_a, work);
        NIBBLE_CHECK(q_b_->forward(p.q_a, rows, p.q, work, observer));
    } else {
        for (int64_t i = 0; i < rows; ++i) std::copy_n(p.in + i * stride, q_part, p.q + i * q_part);
    }
    norm_rows(p.in + q_part, stride, kv_norm_, rows, p.c, work);
    const Arena::Scope scope(work.arena);
    float* kv = work.arena.floats(rows * kv_b_.rows);
    NIBBLE_CHECK(kv_b_.forward(p.c, rows, kv, work, observer));
    work.parallel_rows(rows, 4 * heads * dim, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
            const auto rotate = [&](float* x, int64_t count) {
                if (config_.rotates)
                    work.elementwise->rope(x, count, dim, rotary.cos + i * rope / 2, rotary.sin + i * rope / 2, rope,
                                           config_.rope.interleaved, work.bf16());
            };
            float *q = p.q + i * heads * dim, *k = p.k + i * heads * dim, *v = p.v + i * heads * v_dim;
            rotate(q + nope, heads);
            scale_query(q, batch.positions()[static_cast<size_t>(i)], work.bf16(), work);
            float* shared = k + nope;  // rotated part of the first head's key; copied to the other heads
            std::copy_n(p.in + i * stride + q_part + rank, rope, shared);
            rotate(shared, 1);
            for (int64_t h = 0; h < heads; ++h) {
                const float* from = kv + i * kv_b_.rows + h * (nope + v_dim);
                std::copy_n(from, nope, k + h * dim);
                std::copy_n(from + nope, v_dim, v + h * v_dim);
                if (h > 0) std::copy_n(shared, rope, k + h * dim + nope);
            }
        }
    });
    return p;
}

Status LatentAttention::forward(const Batch& batch, const float* x, float* y, Workspace& work,
                                Observer* observer) const {
    const Arena::Scope scope(work.arena);
    const int64_t rows = batch.rows(), k_cols = config_.heads * k_dim(),
                  v_cols = int64_t{config_.heads} * config_.v_dim;
    NIBBLE_TRY(const Projected p, project(batch, x, work, observer));
    if (observer) {
        NIBBLE_CHECK(observer->kv(prefix_, p.k, p.v, rows, k_cols, v_cols));
        NIBBLE_CHECK(observer->queries(prefix_, p.q, rows, k_cols, k_cols));
    }
    float* mixed = work.arena.floats(rows * v_cols);
    const AttentionShape shape{.kv = kv_, .heads = config_.heads, .scale = config_.scale, .bf16 = work.bf16()};
    KeyChoice choice;
    if (indexer_) {
        NIBBLE_TRY(choice, indexer_->choose(batch, x, p.q_a, work, observer));
    }
    attend(batch, index_, shape, p.q, k_cols, p.k, k_cols, p.v, v_cols, mixed, work, KvOwner::own, choice);
    return forward_gathered(o_, heads_.get(), mixed, rows, y, work, observer);
}

}  // namespace nibble
