#include "train/device/sharded_units.h"

#include "base/checked.h"
#include "kernels/optimizer_cuda.h"

#include <algorithm>

namespace nibble {
namespace {

std::byte* unit_bytes(float* p) { return reinterpret_cast<std::byte*>(p); }
int64_t unit_whole(int64_t bytes) { return round_up(bytes, DeviceArena::alignment); }

std::array<int64_t, 3> most_elements(const TrainWeights& weights) {
    std::array<int64_t, 3> most{};
    for (size_t part = 0; part < weights.parts().size(); ++part) {
        int64_t& of_slot = most[weights.slot_of(part)];
        of_slot = std::max(of_slot, weights.parts()[part].count);
    }
    return most;
}

}  // namespace

// Returns the largest number of elements of a part that a rank receives from another rank.
int64_t ShardedUnits::most_received(const TrainWeights& weights, const FlatShards& shards) {
    int64_t most = 0;
    for (const FlatLayout::Range& part : weights.parts()) {
        std::vector<int64_t> of_rank(static_cast<size_t>(shards.size()));
        for (const FlatRun& run : shards.within(part.at, part.at + part.count))
            of_rank[static_cast<size_t>(run.rank)] += run.elements();
        most = std::max(most, *std::ranges::max_element(of_rank));
    }
    return most;
}

int64_t ShardedUnits::bytes(const TrainWeights& weights, const FlatShards& shards) {
    int64_t sum = unit_whole(4 * weights.flat().vector_elements());
    for (const int64_t count : most_elements(weights)) sum += unit_whole(4 * count);
    return sum + (shards.size() - 1) * unit_whole(4 * most_received(weights, shards));
}

Result<std::unique_ptr<ShardedUnits>> ShardedUnits::create(const TrainWeights& weights, DeviceRanks& ranks,
                                                           DeviceTrace& trace, const DeviceInfo& device,
                                                           const Stream& compute) {
    NIBBLE_TRY(Stream stream, Stream::create(device.index, Stream::Priority::high));
    std::unique_ptr<ShardedUnits> units(new ShardedUnits(weights, ranks, trace, compute, std::move(stream)));
    for (const FlatLayout::Range& part : weights.parts()) {
        units->runs_.push_back(ranks.shards().within(part.at, part.at + part.count));
        units->gaps_.push_back(flat_gaps(weights.flat(), part.at, part.at + part.count));
    }
    NIBBLE_TRY(units->memory_, DeviceArena::create(device.index, bytes(weights, ranks.shards())));
    const std::array<int64_t, 3> most = most_elements(weights);
    for (size_t s = 0; s < units->slots_.size(); ++s) {
        Slot& slot = units->slots_[s];
        NIBBLE_TRY(slot.gradient, units->memory_->allocate_array<float>(most[s]));
        for (std::optional<Event>* event : {&slot.free, &slot.ready, &slot.sent}) {
            NIBBLE_TRY(*event, Event::create_sleeping());
        }
    }
    const int64_t vectors = weights.flat().vector_elements();
    NIBBLE_TRY(units->vectors_, units->memory_->allocate_array<float>(vectors));
    NIBBLE_CHECK(fill_device(unit_bytes(units->vectors_), 0, 4 * vectors, compute));  // gaps stay zero
    const int64_t received = most_received(weights, ranks.shards());
    for (int r = 0; r < ranks.size(); ++r) {
        float* from = nullptr;
        if (r != ranks.rank()) {
            NIBBLE_TRY(from, units->memory_->allocate_array<float>(received));
        }
        units->received_.push_back(from);
    }
    for (std::optional<Event>& event : units->left_) {
        NIBBLE_TRY(event, Event::create_sleeping());
    }
    for (std::optional<Event>* event : {&units->changed_, &units->written_, &units->vectors_sent_, &units->joined_}) {
        NIBBLE_TRY(*event, Event::create_sleeping());
    }
    return units;
}

void ShardedUnits::begin_step() {
    for (Slot& slot : slots_) slot.drawn = false;
}

Status ShardedUnits::gather(size_t part, bool back) {
    if (version_ != weights_.version()) {
        version_ = weights_.version();
        for (Slot& slot : slots_) slot.part = -1;
        NIBBLE_CHECK(changed_->record(compute_));
        NIBBLE_CHECK(changed_->make_wait(stream_));
    }
    Slot& slot = slots_[weights_.slot_of(part)];
    const bool draws = back && weights_.draws(part);
    const bool there = slot.part == static_cast<int64_t>(part);
    if (there && (!draws || slot.drawn)) return Ok{};
    NIBBLE_CHECK(slot.free->make_wait(stream_));
    NIBBLE_CHECK(mark("gather part", static_cast<int64_t>(part)));
    if (there) {
        NIBBLE_CHECK(weights_.draw(part, stream_));
    } else {
        std::vector<DeviceGroup::Part> send, receive;
        std::byte* const to = weights_.gathered(part);
        for (const FlatRun& run : runs_[part]) {
            if (run.rank != ranks_.rank()) {
                receive.push_back({run.rank, to + 2 * run.begin, 2 * run.elements()});
                continue;
            }
            std::byte* const own = weights_.published_at(run.begin);
            NIBBLE_CHECK(copy_on_device(to + 2 * run.begin, own, 2 * run.elements(), stream_));
            for (int r = 0; r < ranks_.size(); ++r)
                if (r != ranks_.rank()) send.push_back({r, own, 2 * run.elements()});
        }
        NIBBLE_CHECK(ranks_.exchange(send, receive, stream_));
        NIBBLE_CHECK(weights_.make_operands(part, back, stream_));
    }
    slot.part = static_cast<int64_t>(part);
    slot.drawn = draws;
    NIBBLE_CHECK(mark(""));
    return slot.ready->record(stream_);
}

Status ShardedUnits::enter(size_t part, bool back) {
    if (ranks_.size() > 1) NIBBLE_CHECK(ranks_.wait(*left_[leaves_ % left_.size()]));
    NIBBLE_CHECK(gather(part, back));
    NIBBLE_CHECK(slots_[weights_.slot_of(part)].ready->make_wait(compute_));
    const size_t blocks = weights_.flat().units.size();
    if (!back && part < weights_.parts().size() - 1) return gather(part + 1, false);
    if (back && part >= 2) return gather(part - 1, true);
    if (back && part == 0 && weights_.head_part() == 0) return gather(blocks, true);
    return Ok{};
}

Status ShardedUnits::leave(size_t part, bool back) {
    NIBBLE_CHECK(slots_[weights_.slot_of(part)].free->record(compute_));
    NIBBLE_CHECK(left_[leaves_++ % left_.size()]->record(compute_));
    // No other part waits for the slot of the embedding or the head.
    return back && part >= 3 && part <= weights_.flat().units.size() ? gather(part - 2, true) : Status(Ok{});
}

Status ShardedUnits::begin_back(float* target) {
    target_ = target;
    return vectors_sent_->make_wait(compute_);
}

Result<float*> ShardedUnits::gradient(size_t part) {
    Slot& slot = slots_[weights_.slot_of(part)];
    NIBBLE_CHECK(slot.sent->make_wait(compute_));
    float* const first = slot.gradient - weights_.parts()[part].at;
    for (const FlatLayout::Range& gap : gaps_[part])
        NIBBLE_CHECK(fill_device(unit_bytes(first + gap.at), 0, 4 * gap.count, compute_));
    return first;
}

Status ShardedUnits::reduce(size_t part) {
    Slot& slot = slots_[weights_.slot_of(part)];
    NIBBLE_CHECK(slot.free->make_wait(stream_));
    NIBBLE_CHECK(mark("add part", static_cast<int64_t>(part)));
    float* const first = slot.gradient - weights_.parts()[part].at;
    const bool tree = ranks_.order() == GradientOrder::tree;
    NIBBLE_CHECK(tree ? exchange_gradient(part, first) : add_freely(part, first));
    int64_t own = 0;
    for (const FlatRun& run : runs_[part]) {
        if (run.rank != ranks_.rank()) continue;
        std::vector<float*> nodes{first + run.begin};
        if (tree) {
            nodes.clear();
            for (float* from : received_) nodes.push_back(from ? from + own : first + run.begin);
        }
        NIBBLE_CHECK(DeviceRanks::add_nodes(std::move(nodes), target_ + run.local, run.elements(), stream_));
        own += run.elements();
    }
    NIBBLE_CHECK(mark(""));
    return slot.sent->record(stream_);
}

// Sends to every rank the elements of the part that it keeps. `first`: base of the flat gradient.
Status ShardedUnits::exchange_gradient(size_t part, float* first) {
    std::vector<DeviceGroup::Part> send, receive;
    int64_t own = 0;
    for (const FlatRun& run : runs_[part]) {
        const int64_t bytes = 4 * run.elements();
        if (run.rank != ranks_.rank()) {
            send.push_back({run.rank, unit_bytes(first + run.begin), bytes});
            continue;
        }
        for (int r = 0; r < ranks_.size(); ++r)
            if (r != ranks_.rank()) receive.push_back({r, unit_bytes(received_[static_cast<size_t>(r)] + own), bytes});
        own += run.elements();
    }
    return ranks_.exchange(send, receive, stream_);
}

Status ShardedUnits::add_freely(size_t part, float* first) {
    std::vector<DeviceGroup::Sum> sums;
    for (const FlatRun& run : runs_[part]) sums.push_back({run.rank, first + run.begin, run.elements()});
    return ranks_.add_freely(sums, stream_);
}

Status ShardedUnits::reduce_vectors() {
    NIBBLE_CHECK(written_->record(compute_));
    NIBBLE_CHECK(written_->make_wait(stream_));
    NIBBLE_CHECK(mark("add vectors"));
    NIBBLE_CHECK(ranks_.add_vectors(vectors_, target_ + ranks_.elements(), stream_));
    NIBBLE_CHECK(mark(""));
    return vectors_sent_->record(stream_);
}

Status ShardedUnits::add(float* target, const float* other) {
    return cuda::add_gradient(target, other, ranks_.elements() + weights_.flat().vector_elements(), stream_);
}

Status ShardedUnits::join() {
    NIBBLE_CHECK(joined_->record(stream_));
    return joined_->make_wait(compute_);
}

}  // namespace nibble
