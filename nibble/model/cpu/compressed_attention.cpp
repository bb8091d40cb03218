#include "model/cpu/compressed_attention.h"

#include "model/sequence.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace nibble {

Result<std::unique_ptr<Mixer>> load_mixer(const ModelConfig& model, const BlockConfig& block,
                                          const CompressedAttentionConfig& config, WeightSource& weights) {
    return CompressedAttention::load(model, block, config, weights);
}

Result<std::unique_ptr<Mixer>> CompressedAttention::load(const ModelConfig& model, const BlockConfig& block,
                                                         const CompressedAttentionConfig& c, WeightSource& weights) {
    auto a = std::make_unique<CompressedAttention>();
    a->prefix_ = block.prefix;
    a->index_ = block.index;
    a->config_ = c;
    a->eps_ = model.norm_eps;
    const int64_t q_cols = int64_t{c.heads} * c.dim, group_cols = q_cols / c.groups, n = model.hidden;
    NIBBLE_TRY(a->q_a_, weights.linear(block.name("wq_a"), c.q_rank, n, false));
    NIBBLE_TRY(a->q_norm_, Norm::load(model, block.name("q_norm.weight"), c.q_rank, weights));
    NIBBLE_TRY(a->q_b_, weights.linear(block.name("wq_b"), q_cols, c.q_rank, false));
    NIBBLE_TRY(a->k_, weights.linear(block.name("wkv"), c.dim, n, false));
    NIBBLE_TRY(a->kv_norm_, Norm::load(model, block.name(c.kv_norm) + ".weight", c.dim, weights));
    NIBBLE_TRY(a->sinks_, weights.vector(block.name("attn_sink"), c.heads));
    for (int64_t g = 0; g < c.groups; ++g) {
        NIBBLE_TRY(Linear part, weights.linear_rows(block.name("wo_a"), int64_t{c.groups} * c.out_rank, group_cols,
                                                    g * c.out_rank, c.out_rank));
        a->out_a_.push_back(std::move(part));
    }
    NIBBLE_TRY(a->out_b_, weights.linear(block.name("wo_b"), n, int64_t{c.groups} * c.out_rank, false));
    NIBBLE_TRY(a->kv_, weights.kv_shape(block.prefix, 1, c.dim, c.dim));
    a->ones_.assign(static_cast<size_t>(c.dim), 1.0f);
    if (c.rate == 0) return std::unique_ptr<Mixer>(std::move(a));
    NIBBLE_TRY(a->compressor_,
               Compressor::load(model, block.name("compressor"),
                                {.dim = c.dim, .rate = c.rate, .overlaps = c.overlaps, .rope = c.rope}, weights));
    if (!c.indexer) return std::unique_ptr<Mixer>(std::move(a));
    const IndexerConfig& i = *c.indexer;
    a->index_shape_ = {.heads = i.heads,
                       .dim = i.dim,
                       .type = KvType::f32,
                       .scale = 1.0f / std::sqrt(static_cast<float>(i.dim)),
                       .top = i.top,
                       .rate = c.rate};
    NIBBLE_TRY(a->index_q_, weights.linear(block.name("indexer.wq_b"), int64_t{i.heads} * i.dim, c.q_rank, false));
    NIBBLE_TRY(a->index_weights_, weights.linear(block.name("indexer.weights_proj"), i.heads, n, false));
    NIBBLE_TRY(a->index_compressor_,
               Compressor::load(model, block.name("indexer.compressor"),
                                {.dim = i.dim, .rate = c.rate, .overlaps = c.overlaps, .rope = c.rope}, weights));
    return std::unique_ptr<Mixer>(std::move(a));
}

std::vector<const Linear*> CompressedAttention::linears() const {
    std::vector<const Linear*> all{&q_a_, &q_b_, &k_};
    for (const Linear& part : out_a_) all.push_back(&part);
    all.push_back(&out_b_);
    for (const auto* compressor : {&compressor_, &index_compressor_})
        if (*compressor)
            for (const Linear* linear : (*compressor)->linears()) all.push_back(linear);
    if (index_compressor_) all.insert(all.end(), {&index_q_, &index_weights_});
    return all;
}

std::vector<std::span<const Linear>> CompressedAttention::units() const {
    std::vector<std::span<const Linear>> all;
    for (const Linear* linear : linears()) all.push_back({linear, 1});
    return all;
}

int64_t CompressedAttention::page_bytes() const {
    int64_t bytes = kv_page_bytes(kv_);
    if (compressor_) bytes += compressor_->page_bytes();
    if (index_compressor_) bytes += index_compressor_->page_bytes();
    return bytes;
}

void CompressedAttention::rotate(float* x, int64_t count, const float* cos, const float* sin,
                                 const Workspace& work) const {
    const Rope& rope = config_.rope;
    work.elementwise->rope(x + config_.dim - rope.dims, count, config_.dim, cos, sin, rope.dims, rope.interleaved,
                           work.bf16());
}

Result<CompressedAttention::Projected> CompressedAttention::project(const Batch& batch, const float* x, Workspace& work,
                                                                    Observer* observer) const {
    const int64_t rows = batch.rows(), heads = config_.heads, dim = config_.dim, half = config_.rope.dims / 2;
    const Projected p{work.arena.floats(rows * config_.q_rank), work.arena.floats(rows * heads * dim),
                      work.arena.floats(rows * dim)};
    NIBBLE_CHECK(q_a_.forward(x, rows, p.latent, work, observer));
    work.parallel_rows(rows, 3 * config_.q_rank, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i)
            q_norm_.apply(p.latent + i * config_.q_rank, p.latent + i * config_.q_rank, work);
    });
    NIBBLE_CHECK(q_b_.forward(p.latent, rows, p.q, work, observer));
    NIBBLE_CHECK(k_.forward(x, rows, p.k, work, observer));
    const RotaryRows rotary = work.rotary(config_.rope, batch.positions());
    work.parallel_rows(rows, 5 * heads * dim, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
            float *q = p.q + i * heads * dim, *k = p.k + i * dim;
            for (int64_t h = 0; h < heads; ++h)
                work.elementwise->rms_norm(q + h * dim, ones_.data(), dim, eps_, work.bf16(), q + h * dim);
            kv_norm_.apply(k, k, work);
            rotate(q, heads, rotary.cos + i * half, rotary.sin + i * half, work);
            rotate(k, 1, rotary.cos + i * half, rotary.sin + i * half, work);
        }
    });
    return p;
}

std::vector<Compressor::Pages> CompressedAttention::pages_of(const Batch& batch, Workspace& work) const {
    std::vector<Compressor::Pages> list;
    for (size_t s = 0; s < batch.segments().size(); ++s) {
        const Segment& segment = batch.segments()[s];
        if (segment.sequence) {
            list.push_back({segment.sequence->pages(index_).data(), kv_page_bytes(kv_)});
            continue;
        }
        const int64_t count = (std::ssize(segment.tokens) + kv_page_tokens - 1) / kv_page_tokens;
        auto** pages = work.arena.array<std::byte*>(count);
        std::byte* memory = work.arena.bytes(count * page_bytes());
        for (int64_t p = 0; p < count; ++p) pages[p] = memory + p * page_bytes();
        std::memset(pages[count - 1], 0, static_cast<size_t>(page_bytes()));  // positions past the text's end
        list.push_back({pages, kv_page_bytes(kv_)});
    }
    return list;
}

Result<CompressedAttention::IndexRows> CompressedAttention::index_rows(const Batch& batch, const float* x,
                                                                       const float* latent, Workspace& work,
                                                                       Observer* observer) const {
    const int64_t rows = batch.rows(), heads = index_shape_.heads, dim = index_shape_.dim, rope = config_.rope.dims;
    const IndexRows r{work.arena.floats(rows * heads * dim), work.arena.floats(rows * heads)};
    NIBBLE_CHECK(index_q_.forward(latent, rows, r.q, work, observer));
    NIBBLE_CHECK(index_weights_.forward(x, rows, r.weights, work, observer));
    const float scale = 1.0f / std::sqrt(static_cast<float>(heads));
    const RotaryRows rotary = work.rotary(config_.rope, batch.positions());
    work.parallel_rows(rows, 4 * heads * dim, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
            work.elementwise->rope(r.q + i * heads * dim + dim - rope, heads, dim, rotary.cos + i * rope / 2,
                                   rotary.sin + i * rope / 2, rope, config_.rope.interleaved, work.bf16());
            for (int64_t h = 0; h < heads; ++h) r.weights[i * heads + h] *= scale;
        }
    });
    return r;
}

void CompressedAttention::choose_pooled(int64_t row, int64_t rows, int64_t start, const Compressor::Pages& pages,
                                        const IndexRows& index, uint64_t* bits, int64_t words, Workspace& work) const {
    const int64_t count = (start + rows) / config_.rate, tiles = choice_words(count), heads = index_shape_.heads;
    auto** table = work.arena.array<std::byte*>(tiles);
    std::byte* memory = work.arena.bytes(tiles * index_shape_.page_bytes());
    for (int64_t t = 0; t < tiles; ++t) table[t] = memory + t * index_shape_.page_bytes();
    const Compressor::Pages from = index_pages(pages);
    for (int64_t w = 0; w < count; ++w)
        index_store(index_shape_, table, w, 1, index_compressor_->pooled(from, w), index_shape_.dim);
    const IndexJob job{.q = index.q + row * heads * index_shape_.dim,
                       .weights = index.weights + row * heads,
                       .q_stride = heads * index_shape_.dim,
                       .weight_stride = heads,
                       .rows = rows,
                       .position = start,
                       .pages = table,
                       .chosen = bits,
                       .words = words};
    work.index->choose(index_shape_, {&job, 1}, *work.pool);
}

AttentionJob CompressedAttention::job_of(const Batch& batch, size_t s, const Projected& p,
                                         const Compressor::Pages& pages, const std::optional<IndexRows>& index,
                                         float* y, Workspace& work) const {
    const int64_t rows = std::ssize(batch.segments()[s].tokens), row = batch.row(s), start = batch.position(s);
    const int64_t q_cols = int64_t{config_.heads} * config_.dim, window = config_.window;
    const int64_t pooled = config_.rate > 0 ? (start + rows) / config_.rate : 0, tiles = choice_words(pooled);
    // Pooled keys lie in pages before those of the window: the key of position t has place t + shift.
    const int64_t first_page = std::max<int64_t>(0, start - window + 1) / kv_page_tokens,
                  end_page = (start + rows - 1) / kv_page_tokens + 1, shift = (tiles - first_page) * kv_page_tokens;
    const int64_t words = tiles + end_page - first_page;
    auto** table = work.arena.array<std::byte*>(words);
    auto* bits = work.arena.array<uint64_t>(rows * words);
    std::fill_n(bits, rows * words, 0);
    std::byte* memory = work.arena.bytes(tiles * kv_page_bytes(kv_));
    for (int64_t t = 0; t < tiles; ++t) table[t] = memory + t * kv_page_bytes(kv_);
    std::copy(pages.pages + first_page, pages.pages + end_page, table + tiles);
    if (tiles > 0) std::memset(table[tiles - 1], 0, static_cast<size_t>(kv_page_bytes(kv_)));
    for (int64_t w = 0; w < pooled; ++w) {
        const float* key = compressor_->pooled(pages, w);
        kv_store(kv_, table, w, 1, key, config_.dim, key, config_.dim);
    }
    if (index && pooled > 0) choose_pooled(row, rows, start, pages, *index, bits, words, work);
    for (int64_t i = 0; i < rows; ++i) {
        const int64_t t = start + i;
        if (pooled > 0 && !index) set_bits(bits + i * words, 0, (t + 1) / config_.rate);
        set_bits(bits + i * words, std::max<int64_t>(0, t - window + 1) + shift, t + 1 + shift);
    }
    return {.q = p.q + row * q_cols,
            .y = y + row * q_cols,
            .q_stride = q_cols,
            .y_stride = q_cols,
            .rows = rows,
            .position = start + shift,
            .pages = table,
            .chosen = bits,
            .chosen_words = words};
}

Status CompressedAttention::project_out(float* mixed, int64_t rows, float* y, Workspace& work,
                                        Observer* observer) const {
    const int64_t q_cols = int64_t{config_.heads} * config_.dim, cols = q_cols / config_.groups,
                  rank = config_.out_rank, all = config_.groups * rank;
    float* in = work.arena.floats(rows * cols);
    float* part = work.arena.floats(rows * rank);
    float* joined = work.arena.floats(rows * all);
    for (int64_t g = 0; g < config_.groups; ++g) {
        for (int64_t i = 0; i < rows; ++i) std::copy_n(mixed + i * q_cols + g * cols, cols, in + i * cols);
        NIBBLE_CHECK(out_a_[static_cast<size_t>(g)].forward(in, rows, part, work, nullptr));
        for (int64_t i = 0; i < rows; ++i) std::copy_n(part + i * rank, rank, joined + i * all + g * rank);
    }
    return out_b_.forward(joined, rows, y, work, observer);
}

Status CompressedAttention::forward(const Batch& batch, const float* x, float* y, Workspace& work,
                                    Observer* observer) const {
    const Arena::Scope scope(work.arena);
    const int64_t rows = batch.rows(), heads = config_.heads, dim = config_.dim, half = config_.rope.dims / 2;
    NIBBLE_TRY(const Projected p, project(batch, x, work, observer));
    const std::vector<Compressor::Pages> pages = pages_of(batch, work);
    for (size_t s = 0; s < pages.size(); ++s)
        kv_store(kv_, pages[s].pages, batch.position(s), std::ssize(batch.segments()[s].tokens),
                 p.k + batch.row(s) * dim, dim, p.k + batch.row(s) * dim, dim);
    if (compressor_) NIBBLE_CHECK(compressor_->forward(batch, x, pages, work, observer));
    std::optional<IndexRows> index;
    if (index_compressor_) {
        std::vector<Compressor::Pages> of_index;
        for (const Compressor::Pages& of : pages) of_index.push_back(index_pages(of));
        NIBBLE_CHECK(index_compressor_->forward(batch, x, of_index, work, observer));
        NIBBLE_TRY(index, index_rows(batch, x, p.latent, work, observer));
    }
    float* mixed = work.arena.floats(rows * heads * dim);
    std::vector<AttentionJob> jobs;
    for (size_t s = 0; s < pages.size(); ++s) jobs.push_back(job_of(batch, s, p, pages[s], index, mixed, work));
    const AttentionShape shape{
        .kv = kv_, .heads = config_.heads, .scale = config_.scale, .bf16 = work.bf16(), .sinks = sinks_.data()};
    work.attention->attend(shape, jobs, *work.pool);
    const RotaryRows rotary = work.rotary(config_.rope, batch.positions());
    float* back = work.arena.floats(rows * half);
    for (int64_t i = 0; i < rows * half; ++i) back[i] = -rotary.sin[i];
    work.parallel_rows(rows, heads * dim, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i)
            rotate(mixed + i * heads * dim, heads, rotary.cos + i * half, back + i * half, work);
    });
    return project_out(mixed, rows, y, work, observer);
}

Status CompressedAttention::backward(const Batch&, const float*, const float*, float*, Workspace&, Observer*,
                                     GradientSink*) const {
    return fail("{}: a backward pass through compressed attention is not supported", prefix_);
}

}  // namespace nibble
