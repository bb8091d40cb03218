#include "model/device/batch.h"

#include "kernels/attention.h"

#include <algorithm>
#include <bit>
#include <climits>

namespace nibble {
namespace {

int64_t power_of_two(int64_t n) { return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n))); }

bool same_but_for_sizes(const cuda::AttentionProblem& a, const cuda::AttentionProblem& b) {
    return a.kv == b.kv && a.q_heads == b.q_heads && a.window == b.window && a.chunk == b.chunk &&
           a.soft_cap == b.soft_cap && a.softmax_scale == b.softmax_scale;
}

}  // namespace

Status DeviceUpload::send(int device, const Stream& stream) {
    const auto n = static_cast<int64_t>(bytes_.size());
    if (device_.empty() || device_.front().host[0].size() < n) {
        if (!device_.empty()) NIBBLE_CHECK(stream.synchronize());
        device_.clear();
        const int64_t capacity = power_of_two(std::max<int64_t>(n, 1 << 16));
        NIBBLE_TRY(PinnedBuffer host, PinnedBuffer::create(capacity));
        NIBBLE_TRY(PinnedBuffer other, PinnedBuffer::create(capacity));
        NIBBLE_TRY(DeviceArena arena, DeviceArena::create(device, capacity));
        NIBBLE_TRY(std::byte * data, arena.allocate(capacity));
        device_.push_back({{std::move(host), std::move(other)}, std::move(arena), data});
    }
    PinnedBuffer& host = device_.front().host[sends_++ % 2];
    std::memcpy(host.data(), bytes_.data(), bytes_.size());
    return copy_to_device(device_.front().data, host.data(), n, stream);
}

DeviceBatchShape shape_of(const Batch& batch) {
    DeviceBatchShape s{.rows = batch.rows(), .segments = std::ssize(batch.segments())};
    for (size_t i = 0; i < batch.segments().size(); ++i)
        s.most_tokens = std::max(s.most_tokens, batch.position(i) + std::ssize(batch.segments()[i].tokens));
    s.most_tokens = power_of_two(std::max<int64_t>(s.most_tokens, 1024));
    s.pitch = s.most_tokens / kv_page_tokens;
    return s;
}

// Planning queries the driver, so plans are kept while successive batches have the same shape.
Status DeviceBatch::plan_attention(std::span<const DeviceLayer> layers, const DeviceInfo& device) {
    const bool planned = planned_ == std::pair(shape_, page_stride_);
    if (!planned) attention_.clear();
    planned_.reset();
    for (Attention& a : attention_) a.work = -1;
    for (size_t i = 0; i < layers.size(); ++i) {
        auto problem = layers[i].mixer->attention();
        if (!problem) continue;
        problem->kv.page_stride = page_stride_;
        auto at =
            std::ranges::find_if(attention_, [&](const Attention& a) { return same_but_for_sizes(a.like, *problem); });
        if (at == attention_.end()) {
            Attention a{.like = *problem};
            problem->most_segments = shape_.segments;
            problem->most_rows = shape_.rows;
            problem->most_tokens = shape_.most_tokens;
            problem->table_pitch = shape_.pitch;
            NIBBLE_TRY(a.plan, cuda::plan_attention(*problem, device));
            at = attention_.insert(attention_.end(), a);
        }
        if (at->work < 0) {
            NIBBLE_TRY(cuda::AttentionWork work, cuda::attention_work(at->plan, segments_));
            work.words.resize(static_cast<size_t>(at->plan.work_words));  // padded, so that later arrays have the same
                                                                          // offsets in every batch of this shape
            at->work = upload_.add(std::span<const int32_t>(work.words));
        }
        blocks_[i].attention = static_cast<int>(at - attention_.begin());
    }
    planned_ = std::pair(shape_, page_stride_);
    return Ok{};
}

void DeviceBatch::add_pages(const Batch& batch, std::span<Sequence* const> sequences, int index, Block& block) {
    std::vector<int32_t> table(static_cast<size_t>(shape_.segments * shape_.pitch));
    std::vector<int64_t> slots;
    for (size_t s = 0; s < sequences.size(); ++s) {
        const auto pages = sequences[s]->pages(index);
        const KvPool& pool = sequences[s]->pool();
        // Pages that left the window are null; kernels do not read their entries.
        for (size_t p = 0; p < pages.size(); ++p)
            if (pages[p])
                table[s * static_cast<size_t>(shape_.pitch) + p] = static_cast<int32_t>(pool.number(pages[p]));
        for (int64_t i = 0; i < std::ssize(batch.segments()[s].tokens); ++i) {
            const int64_t at = batch.position(s) + i;
            slots.push_back(pool.number(pages[static_cast<size_t>(at / kv_page_tokens)]) * kv_page_tokens +
                            at % kv_page_tokens);
        }
    }
    block.slots = upload_.add(std::span<const int64_t>(slots));
    block.table = upload_.add(std::span<const int32_t>(table));
}

// The list of seen tokens is last in the upload, so its length does not change other addresses and graphs stay valid.
void DeviceBatch::add_requests(std::span<const TokenRequest> requests) {
    std::vector<cuda::SampleRow> rows;
    std::vector<cuda::SeenSlot> slots;
    scored_ = false;
    for (const TokenRequest& r : requests) {
        rows.push_back(cuda::sample_row(r, std::ssize(slots)));
        scored_ |= rows.back().scored != 0;
        if (r.deferred) continue;
        for (const SeenToken& token : r.seen) slots.push_back({token});
    }
    requests_ = upload_.add(std::span<const cuda::SampleRow>(rows));
    seen_ = upload_.add(std::span<const cuda::SeenSlot>(slots));
}

// Carried tokens come last, too, for the same reason.
void DeviceBatch::add_carried(const Batch& batch, std::span<const int64_t> carried) {
    std::vector<cuda::CarriedToken> list;
    for (size_t s = 0; s < carried.size(); ++s)
        if (carried[s] >= 0)
            list.push_back({static_cast<int32_t>(carried[s]),
                            static_cast<int32_t>(batch.row(s) + std::ssize(batch.segments()[s].tokens) - 1)});
    carried_ = upload_.add(std::span<const cuda::CarriedToken>(list));
    carried_count_ = std::ssize(list);
}

Status DeviceBatch::carry(const ChosenToken* from, const Stream& stream) const {
    return cuda::carry_tokens(upload_.at<cuda::CarriedToken>(carried_), carried_count_, from,
                              upload_.at<int32_t>(tokens_), stream);
}

Status DeviceBatch::make(const Batch& batch, std::span<Sequence* const> sequences, std::span<const DeviceLayer> layers,
                         std::span<const TokenRequest> requests, std::span<const int64_t> carried,
                         const DeviceInfo& device, const Stream& stream, int first) {
    shape_ = shape_of(batch);
    upload_.clear();
    segments_.clear();
    blocks_.assign(layers.size(), {});
    pages_ = sequences[0]->pool().base();
    page_stride_ = sequences[0]->pool().page_bytes();
    longest_ = 0;
    std::vector<int32_t> tokens, positions, wanted;
    for (size_t s = 0; s < sequences.size(); ++s) {
        const Segment& segment = batch.segments()[s];
        const auto count = static_cast<int32_t>(segment.tokens.size()), row = static_cast<int32_t>(batch.row(s));
        tokens.insert(tokens.end(), segment.tokens.begin(), segment.tokens.end());
        segments_.push_back({.row = row,
                             .rows = count,
                             .position = static_cast<int32_t>(batch.position(s)),
                             .table = static_cast<int32_t>(s)});
        longest_ = std::max(longest_, count);
        for (auto i = static_cast<int32_t>(std::max<int64_t>(segment.logits_from, 0)); i < count; ++i)
            wanted.push_back(row + i);
    }
    positions.assign(batch.positions().begin(), batch.positions().end());
    tokens_ = upload_.add(std::span<const int32_t>(tokens));
    positions_ = upload_.add(std::span<const int32_t>(positions));
    nonfinite_ = upload_.add(std::span<const int32_t>(std::vector<int32_t>(layers.size(), INT_MAX)));
    for (size_t i = 0; i < layers.size(); ++i) {
        const StateLayout layout = layers[i].mixer->state();
        const int index = first + static_cast<int>(i);
        blocks_[i].place = static_cast<size_t>(layers[i].config.index);
        if (layout.page_bytes > 0) add_pages(batch, sequences, index, blocks_[i]);
        if (const int from = layers[i].mixer->kv_block(); from >= 0)
            blocks_[i].table = blocks_[static_cast<size_t>(from - first)].table;
        if (layout.floats == 0) continue;
        std::vector<cuda::StateSegment> list;
        for (size_t s = 0; s < sequences.size(); ++s)
            list.push_back({segments_[s].row, segments_[s].rows, sequences[s]->state(index), segments_[s].position});
        blocks_[i].segments = upload_.add(std::span<const cuda::StateSegment>(list));
    }
    NIBBLE_CHECK(plan_attention(layers, device));
    wanted_ = upload_.add(std::span<const int32_t>(wanted));
    add_requests(requests);
    add_carried(batch, carried);
    return upload_.send(device.index, stream);
}

void DeviceBatch::describe(DeviceStep& step) const {
    step.rows = shape_.rows, step.segments = shape_.segments;
    step.longest = longest_;
    step.tokens = upload_.at<int32_t>(tokens_);
    step.positions = upload_.at<int32_t>(positions_);
    step.pages = pages_;
    step.page_stride = page_stride_;
    step.blocks.clear();
    for (const Block& b : blocks_) {
        if (step.blocks.size() <= b.place) step.blocks.resize(b.place + 1);
        DeviceBlockBatch& to = step.blocks[b.place];
        if (b.slots >= 0) to.slots = upload_.at<int64_t>(b.slots);
        if (b.table >= 0) to.table = upload_.at<int32_t>(b.table);
        if (b.segments >= 0) to.segments = upload_.at<cuda::StateSegment>(b.segments);
        if (b.attention >= 0) {
            to.attention = &attention_[static_cast<size_t>(b.attention)].plan;
            to.work = upload_.at<int32_t>(attention_[static_cast<size_t>(b.attention)].work);
        }
    }
}

int64_t DeviceBatch::attention_workspace() const {
    int64_t most = 0;
    for (const Attention& a : attention_) most = std::max(most, a.plan.workspace_bytes);
    return most;
}

}  // namespace nibble
