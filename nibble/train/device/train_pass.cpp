#include "train/device/train_pass.h"

#include "base/checked.h"
#include "train/device/train_scratch.h"

#include <algorithm>
#include <bit>

namespace nibble {
namespace {

bool one_kind(const DeviceMixer& a, const DeviceMixer& b) {
    const auto x = a.attention(), y = b.attention();
    return x->kv == y->kv && x->q_heads == y->q_heads && x->window == y->window && x->softmax_scale == y->softmax_scale;
}

}  // namespace

Result<std::vector<TrainMemoryPlan::Item>> TrainPass::sizes(const TrainWeights& weights, const TrainPassShape& shape,
                                                            const DeviceInfo& device) {
    NIBBLE_TRY(const TrainScratch scratch, TrainScratch::make(weights, shape, device));
    return std::vector<TrainMemoryPlan::Item>{{"activations", scratch.kept},
                                              {"logits slab", scratch.logits},
                                              {"scratch", scratch.together - scratch.logits},
                                              {"K and V of a block", scratch.pages}};
}

Result<std::unique_ptr<TrainPass>> TrainPass::create(const TrainWeights& weights, ShardedUnits* units,
                                                     DeviceTrace& trace, const TrainPassShape& shape,
                                                     const DeviceInfo& device, const Stream& stream, ThreadPool& pool,
                                                     const TimeSharedActivations& time_shared) {
    NIBBLE_TRY(Workspace host, Workspace::create(Compute::bf16, {}, pool));
    std::unique_ptr<TrainPass> pass(new TrainPass(weights, units, trace, shape, device, stream, std::move(host)));
    const auto layers = weights.layers();
    pass->kind_of_.assign(layers.size(), 0);
    for (size_t b = 0; b < layers.size(); ++b) {
        if (!layers[b].mixer->attention()) continue;
        const auto like = std::ranges::find_if(
            pass->kinds_, [&](const Kind& k) { return one_kind(*layers[k.layer].mixer, *layers[b].mixer); });
        pass->kind_of_[b] = static_cast<size_t>(like - pass->kinds_.begin());
        if (like == pass->kinds_.end()) pass->kinds_.emplace_back().layer = b;
        if (const Rope* rope = layers[b].mixer->rope()) pass->memory_.rotary().add(*rope);
    }
    NIBBLE_CHECK(pass->allocate(time_shared));
    return pass;
}

Status TrainPass::allocate(const TimeSharedActivations& time_shared) {
    NIBBLE_TRY(const TrainScratch scratch, TrainScratch::make(weights_, shape_, device_));
    const int64_t n = shape_.tokens(), w = hidden();
    if (time_shared.memory) {
        NIBBLE_TRY(part_of_memory_, time_shared.memory->join(std::string(updates), scratch.kept));
        time_shared.arena->release(0);
        kept_memory_ = time_shared.arena;
    } else {
        NIBBLE_TRY(own_memory_, DeviceArena::create(device_.index, scratch.kept));
        kept_memory_ = &*own_memory_;
    }
    const auto rest = [&](size_t b, Kept& to) -> Status {
        NIBBLE_TRY(to.x, kept_memory_->allocate(2 * padded_rows(n) * w));
        NIBBLE_TRY(const TrainMixerSizes sizes, weights_.mixer(b).sizes(n));
        for (const int64_t bytes : sizes.kept) {
            NIBBLE_TRY(to.rest.emplace_back(), kept_memory_->allocate(bytes));
        }
        if (!weights_.layers()[b].config.post_norm.empty()) {
            NIBBLE_TRY(to.out, kept_memory_->allocate(2 * n * w));
        }
        return Ok{};
    };
    const DeviceArena::Mark start = kept_memory_->mark();
    DeviceArena::Mark end = start;
    for (size_t b = 0; b < weights_.layers().size(); ++b) {
        Kept kept;
        if (shape_.recompute == Recompute::block) {  // one memory for all blocks, as large as the largest
            kept_memory_->release(start);
            NIBBLE_CHECK(rest(b, kept));
            end = std::max(end, kept_memory_->mark());
        } else {
            NIBBLE_CHECK(rest(b, kept));
            end = kept_memory_->mark();
        }
        kept_.push_back(std::move(kept));
    }
    kept_memory_->release(start);
    NIBBLE_CHECK(kept_memory_->allocate(end - start));
    for (Kept& kept : kept_) {
        NIBBLE_TRY(kept.stream, kept_memory_->allocate(2 * n * w));
    }
    NIBBLE_TRY(last_stream_, kept_memory_->allocate(2 * n * w));
    NIBBLE_TRY(normed_, kept_memory_->allocate(2 * padded_rows(n) * w));
    NIBBLE_TRY(amax_, kept_memory_->allocate_array<float>(1));
    NIBBLE_TRY(y_, kept_memory_->allocate(2 * n * w));
    NIBBLE_TRY(d_stream_, kept_memory_->allocate_array<float>(n * w));
    NIBBLE_TRY(dy_, kept_memory_->allocate(2 * n * w));
    NIBBLE_TRY(dx_, kept_memory_->allocate(2 * n * w));
    NIBBLE_TRY(workspace_, kept_memory_->allocate(scratch.workspace));
    NIBBLE_CHECK(memory_.reserve(scratch.together, n));
    return memory_.reserve_rotary(shape_.seq, host_);
}

Status TrainPass::fill_kind(Kind& kind, const Batch& texts) {
    const DeviceLayer& layer = weights_.layers()[kind.layer];
    int64_t tokens = 0;
    const auto count = std::ssize(texts.segments());
    for (const Segment& s : texts.segments()) tokens += round_up(std::ssize(s.tokens), kv_page_tokens);
    if (!kind.pool || kind.pool_tokens < tokens || kind.pool_sequences < count) {
        kind.pool.reset();
        kind.pool_tokens = std::max(tokens, TrainScratch::page_tokens(shape_));
        kind.pool_sequences = std::max<int64_t>(count, TrainScratch::documents(shape_));
        NIBBLE_TRY(kind.pool,
                   KvPool::create({layer.mixer->state()}, kind.pool_tokens, kind.pool_sequences,
                                  [&](int64_t bytes) { return device_state_memory(bytes, device_.index, stream_); }));
    }
    // The pages are free again at the end of this scope, but only later work of this stream can overwrite them.
    std::vector<Sequence> sequences;
    std::vector<Sequence*> list;
    sequences.reserve(static_cast<size_t>(count));
    for (const Segment& s : texts.segments()) {
        sequences.push_back(kind.pool->sequence());
        NIBBLE_CHECK(sequences.back().reserve(std::ssize(s.tokens)));
        list.push_back(&sequences.back());
    }
    return kind.batch.make(texts, list, {&layer, 1}, {}, {}, device_, stream_);
}

Status TrainPass::prepare(const MicroBatch& m) {
    if (part_of_memory_) NIBBLE_CHECK(part_of_memory_->check());
    if (m.tokens() > shape_.tokens() || m.batch->seq > shape_.seq)
        return fail("a micro-batch of {} x {} tokens is more than the planned {} x {}", m.rows, m.batch->seq,
                    shape_.rows, shape_.seq);
    NIBBLE_CHECK(use_device(device_.index));
    NIBBLE_CHECK(copied_.before());
    tokens_ = m.tokens();
    weights_.recipe().begin_rows(m.first_row, m.batch->seq);
    if (cache_) cache_->begin_rows(m.first_row, m.rows, m.batch->seq);
    const Batch texts = texts_of(m);
    for (Kind& kind : kinds_) NIBBLE_CHECK(fill_kind(kind, texts));
    const RowsById by_id = rows_by_id(m.ids());
    std::vector<cuda::StateSegment> segments;
    for (size_t s = 0; s < texts.segments().size(); ++s)
        segments.push_back({.row = static_cast<int32_t>(texts.row(s)),
                            .rows = static_cast<int32_t>(texts.segments()[s].tokens.size())});
    upload_.clear();
    segments_ = upload_.add(std::span<const cuda::StateSegment>(segments));
    labels_ = upload_.add(m.labels());
    first_ = upload_.add(std::span<const int32_t>(first_rows(m)));
    ids_ = upload_.add(std::span<const int32_t>(by_id.ids));
    begin_ = upload_.add(std::span<const int32_t>(by_id.begin));
    order_ = upload_.add(std::span<const int32_t>(by_id.order));
    unique_ = std::ssize(by_id.ids);
    NIBBLE_CHECK(upload_.send(device_.index, stream_));
    NIBBLE_CHECK(copied_.after(stream_));
    // Attention's workspace depends on the documents: more documents than planned may need more.
    int64_t attention = 0;
    for (const Kind& kind : kinds_) attention = std::max(attention, kind.batch.attention_workspace());
    NIBBLE_TRY(const TrainScratch scratch, TrainScratch::make(weights_, shape_, device_, attention));
    NIBBLE_CHECK(memory_.reserve(scratch.together, tokens_));
    const int64_t slab = TrainScratch::slab(shape_.tokens(), weights_.config().vocab);
    const std::array numbers{tokens_, std::min(slab, tokens_), tokens_ % slab};
    NIBBLE_CHECK(memory_.reserve_products(weights_.w4a16(), numbers));
    if (teaching_.head && teaching_.head->w4a16)
        NIBBLE_CHECK(
            memory_.reserve_products(std::array{std::pair(teaching_.head->rows, teaching_.head->cols)}, numbers));
    for (Kind& kind : kinds_) {
        kind.step.emplace(memory_.step());
        kind.batch.describe(*kind.step);
        std::vector<DeviceBlockBatch>& blocks = kind.step->blocks;
        const DeviceBlockBatch of_kind = blocks[static_cast<size_t>(weights_.layers()[kind.layer].config.index)];
        blocks.assign(weights_.layers().size(), of_kind);
        for (DeviceBlockBatch& block : blocks) block.segments = upload_.at<cuda::StateSegment>(segments_);
    }
    return Ok{};
}

Status TrainPass::set_slopes(std::span<const float> slopes) {
    if (std::ssize(slopes) != tokens_) return fail("there are {} slopes for {} tokens", slopes.size(), tokens_);
    NIBBLE_CHECK(slopes_copied_.before());
    slope_upload_.clear();
    slopes_ = slope_upload_.add(slopes);
    NIBBLE_CHECK(slope_upload_.send(device_.index, stream_));
    return slopes_copied_.after(stream_);
}

Status TrainPass::forward(bool keep) {
    const auto layers = weights_.layers();
    DeviceStep& step = *kinds_[0].step;
    // Not with overlap: earlier kernels may have written the weights that the first products prefetch.
    NIBBLE_CHECK(enter(0, false));
    NIBBLE_CHECK(mark("embedding"));
    NIBBLE_CHECK(cuda::embed(weights_.embedding(), step.tokens, tokens_, hidden(), kept_[0].stream, false, stream_));
    NIBBLE_CHECK(leave(0, false));
    for (size_t b = 0; b < layers.size(); ++b) {
        if (units_) NIBBLE_CHECK(mark("wait"));
        NIBBLE_CHECK(enter(1 + b, false));
        NIBBLE_CHECK(mark("forward", static_cast<int64_t>(b)));
        const Kept& kept = kept_[b];
        // alternates if the stream is not read again
        std::byte* const stream = keep ? kept.stream : kept_[b % 2].stream;
        cuda::AddNorm norm{.tokens = tokens_,
                           .width = hidden(),
                           .h = stream,
                           .weight = layers[b].norm,
                           .eps = weights_.config().norm_eps,
                           .out = {kept.x}};
        if (b > 0) {
            norm.h = keep ? kept_[b - 1].stream : kept_[(b - 1) % 2].stream;
            norm.sum = stream;
            norm.update_rows = output_of(b - 1, keeps(keep));
            norm.post_norm = layers[b - 1].post_norm;
        }
        NIBBLE_TRY(norm.amax, amax_for(b));
        NIBBLE_CHECK(cuda::add_norm(norm, step.overlap, stream_));
        NIBBLE_CHECK(block_forward(b, keeps(keep), true, norm.amax));
        NIBBLE_CHECK(leave(1 + b, false));
    }
    const size_t last = layers.size() - 1;
    return cuda::add_norm({.tokens = tokens_,
                           .width = hidden(),
                           .h = keep ? kept_[last].stream : kept_[last % 2].stream,
                           .sum = last_stream_,
                           .update_rows = output_of(last, keeps(keep)),
                           .post_norm = layers[last].post_norm,
                           .weight = weights_.norm(),
                           .eps = weights_.config().norm_eps,
                           .out = {normed_}},
                          step.overlap, stream_);
}

Result<float*> TrainPass::amax_for(size_t b) const {
    if (!weights_.mixer(b).reads_amax(tokens_)) return nullptr;
    NIBBLE_CHECK(fill_device(reinterpret_cast<std::byte*>(amax_), 0, 4, stream_));
    return amax_;
}

Status TrainPass::block_forward(size_t b, bool keep, bool y, const float* amax) {
    const Kept& kept = kept_[b];
    TrainWork work = work_of(b, false);
    work.amax = amax;
    const bool wanted = y || (keep && kept.out);
    return weights_.mixer(b).forward(kept.x, kept.rest, keep, wanted ? output_of(b, keep) : nullptr, work);
}

// K and V are recorded once: in the backward pass if there is one.
TrainWork TrainPass::work_of(size_t block, bool back, float* of_vectors) {
    TrainWork work = work_of(step_of(block), 1 + block, of_vectors);
    if (cache_ && cache_->calibrating() != back) work.cache = cache_->of(block);
    return work;
}

TrainWork TrainPass::work_of(DeviceStep& step, size_t part, float* of_vectors) {
    return {.step = step,
            .published = units_ ? units_->published(part) : weights_.published(),
            .plans = plans_,
            .workspace = workspace_,
            .first = upload_.at<int32_t>(first_),
            .of_vectors = of_vectors};
}

}  // namespace nibble
