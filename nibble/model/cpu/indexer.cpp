#include "model/cpu/indexer.h"

#include "model/sequence.h"

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

constexpr float key_norm_eps = 1e-6f;  // epsilon of DeepSeek's k_norm, whatever rms_norm_eps is

}  // namespace

Result<Indexer> Indexer::load(const ModelConfig& model, const BlockConfig& block, const IndexerConfig& c,
                              int64_t q_rank, const KvShape& kv, WeightSource& weights) {
    Indexer i;
    i.prefix_ = block.prefix;
    i.index_ = block.index;
    i.offset_ = kv_page_bytes(kv);
    i.config_ = c;
    i.shape_ = {.heads = c.heads,
                .dim = c.dim,
                .type = weights.options().compute == Compute::f32 ? KvType::f32 : KvType::bf16,
                .scale = c.weighted ? 1.0f / std::sqrt(static_cast<float>(c.dim)) : 1.0f,
                .top = c.top,
                .weighted = c.weighted,
                .block = c.block,
                .local = c.local};
    if (c.owner >= 0) return i;
    const int64_t q_rows = int64_t{c.heads} * c.dim;
    if (c.weighted) {
        NIBBLE_TRY(i.q_, weights.linear(block.name("indexer.wq_b"), q_rows, q_rank, false));
        NIBBLE_TRY(i.k_, weights.linear(block.name("indexer.wk"), c.dim, model.hidden, false));
        NIBBLE_TRY(i.weights_, weights.linear(block.name("indexer.weights_proj"), c.heads, model.hidden, false));
        i.k_norm_.eps = key_norm_eps;
        i.k_norm_.centered = true;
        NIBBLE_TRY(i.k_norm_.weight, weights.vector(block.name("indexer.k_norm.weight"), c.dim));
        NIBBLE_TRY(i.k_norm_.bias, weights.vector(block.name("indexer.k_norm.bias"), c.dim));
        return i;
    }
    NIBBLE_TRY(i.q_, weights.linear(block.name("index_q_proj"), q_rows, model.hidden, false));
    NIBBLE_TRY(i.k_, weights.linear(block.name("index_k_proj"), c.dim, model.hidden, false));
    NIBBLE_TRY(i.q_norm_, Norm::load(model, block.name("index_q_norm.weight"), c.dim, weights));
    NIBBLE_TRY(i.k_norm_, Norm::load(model, block.name("index_k_norm.weight"), c.dim, weights));
    return i;
}

std::vector<const Linear*> Indexer::linears() const {
    if (config_.owner >= 0) return {};
    if (config_.weighted) return {&q_, &k_, &weights_};
    return {&q_, &k_};
}

Status Indexer::project(const Batch& batch, const float* x, const float* q_latent, bool queries, const Rows& r,
                        Workspace& work, Observer* observer) const {
    const int64_t rows = batch.rows();
    NIBBLE_CHECK(k_.forward(x, rows, r.k, work, observer));
    if (queries || observer) {
        NIBBLE_CHECK(q_.forward(config_.weighted ? q_latent : x, rows, r.q, work, observer));
        if (config_.weighted) NIBBLE_CHECK(weights_.forward(x, rows, r.weights, work, observer));
    }
    prepare_rows(batch, r, queries, work);
    return Ok{};
}

void Indexer::prepare_rows(const Batch& batch, const Rows& r, bool queries, Workspace& work) const {
    const int64_t heads = config_.heads, dim = config_.dim, rope = config_.rope.dims, half = rope / 2;
    const float weight_scale = 1.0f / std::sqrt(static_cast<float>(heads));
    const RotaryRows rotary = half ? work.rotary(config_.rope, batch.positions()) : RotaryRows{};
    work.parallel_rows(batch.rows(), 4 * (heads + 1) * dim, [&](int64_t first, int64_t last) {
        const auto prepare = [&](float* at, const Norm& norm, int64_t count, int64_t row) {
            for (int64_t h = 0; h < count && !norm.empty(); ++h) norm.apply(at + h * dim, at + h * dim, work);
            if (half)
                work.elementwise->rope(at, count, dim, rotary.cos + row * half, rotary.sin + row * half, rope,
                                       config_.rope.interleaved, work.bf16());
        };
        for (int64_t i = first; i < last; ++i) {
            prepare(r.k + i * dim, k_norm_, 1, i);
            if (!queries) continue;
            prepare(r.q + i * heads * dim, q_norm_, heads, i);
            if (config_.weighted)
                for (int64_t h = 0; h < heads; ++h) r.weights[i * heads + h] *= weight_scale;
        }
    });
}

Result<KeyChoice> Indexer::shared_choice(const Batch& batch, const Workspace& work) const {
    KeyChoice choice{.groups = shape_.groups()};
    for (size_t s = 0; s < batch.segments().size(); ++s) {
        const Segment& segment = batch.segments()[s];
        const int64_t last = batch.position(s) + std::ssize(segment.tokens) - 1;
        KeyChoice::OfSegment& of = choice.segments.emplace_back();
        const auto found = work.shared_choices.find({config_.owner, segment.tokens.data()});
        if (found != work.shared_choices.end())
            of = {found->second.data(), choice_words(shape_.visible(last))};
        else if (!shape_.all(shape_.visible(last)))
            return fail("{}: block {} has not chosen the keys that this one attends to", prefix_, config_.owner);
    }
    return choice;
}

Result<KeyChoice> Indexer::choose(const Batch& batch, const float* x, const float* q_latent, Workspace& work,
                                  Observer* observer) const {
    if (config_.owner >= 0) return shared_choice(batch, work);
    const int64_t rows = batch.rows(), q_cols = int64_t{config_.heads} * config_.dim, dim = config_.dim;
    KeyChoice choice{.groups = shape_.groups()};
    std::vector<uint64_t*> bits;
    bool queries = false;
    for (size_t s = 0; s < batch.segments().size(); ++s) {
        const Segment& segment = batch.segments()[s];
        const int64_t count = std::ssize(segment.tokens), last = batch.position(s) + count - 1;
        uint64_t* to = nullptr;
        const int64_t words = choice_words(shape_.visible(last)), all = count * shape_.groups() * words;
        if (!shape_.all(shape_.visible(last))) {
            if (config_.shared) {
                auto& kept = work.shared_choices[{index_, segment.tokens.data()}];
                kept.resize(static_cast<size_t>(all));
                to = kept.data();
            } else {
                to = work.arena.array<uint64_t>(all);
            }
            queries = true;
        } else if (config_.shared) {
            work.shared_choices.erase({index_, segment.tokens.data()});
        }
        bits.push_back(to);
        choice.segments.push_back({to, words});
    }
    const Arena::Scope scope(work.arena);
    const Rows r{.q = work.arena.floats(rows * q_cols),
                 .k = work.arena.floats(rows * dim),
                 .weights = work.arena.floats(rows * config_.heads)};
    NIBBLE_CHECK(project(batch, x, q_latent, queries, r, work, observer));
    std::vector<IndexJob> jobs;
    for (size_t s = 0; s < batch.segments().size(); ++s) {
        const Segment& segment = batch.segments()[s];
        const int64_t count = std::ssize(segment.tokens), row = batch.row(s), start = batch.position(s);
        if (!segment.sequence && !bits[s]) continue;  // the text ends here, and every key is chosen
        const int64_t pages = (start + count + kv_page_tokens - 1) / kv_page_tokens;
        auto** table = work.arena.array<std::byte*>(pages);
        std::byte* scratch = segment.sequence ? nullptr : work.arena.bytes(pages * shape_.page_bytes());
        for (int64_t p = 0; p < pages; ++p)
            table[p] = segment.sequence ? segment.sequence->pages(index_)[static_cast<size_t>(p)] + offset_
                                        : scratch + p * shape_.page_bytes();
        index_store(shape_, table, start, count, r.k + row * dim, dim);
        if (!bits[s]) continue;
        jobs.push_back({.q = r.q + row * q_cols,
                        .weights = r.weights + row * config_.heads,
                        .q_stride = q_cols,
                        .weight_stride = config_.heads,
                        .rows = count,
                        .position = start,
                        .pages = table,
                        .chosen = bits[s],
                        .words = choice.segments[s].words});
    }
    work.index->choose(shape_, jobs, *work.pool);
    return choice;
}

Status Indexer::check_dense(const Batch& batch) const {
    for (const Segment& segment : batch.segments())
        if (!shape_.all(std::ssize(segment.tokens)))
            return fail(
                "{}: the backward pass of sparse attention supports texts of at most {} tokens, within which every key "
                "is chosen; this text has {}",
                prefix_, config_.dense_tokens(), segment.tokens.size());
    return Ok{};
}

}  // namespace nibble
