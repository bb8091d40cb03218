// Sharding::all: the parts of a model (flat_parts()) on their way. Before a part computes, its values are gathered from
// all GPUs and made into operands; what it gives of gradients goes to those that keep the part, added in the order of
// the tree. Both happen in a stream of their own while the parts beside it compute:
//
//   forward    part p computes, p + 1 is gathered
//   back       part p computes, then p - 2 is gathered into its place and its gradients are added; p - 1 computes
//
// Nothing is allocated after create().
#pragma once

#include "train/device/device_ranks.h"
#include "train/device/device_trace.h"
#include "train/device/train_weights.h"

#include <array>
#include <memory>

namespace nibble {

class ShardedUnits {
public:
    // Of gradients of the parts in hand, and of what other ranks send.
    static int64_t bytes(const TrainWeights& weights, const FlatShards& shards);
    // All of it outlives the units; `compute`: where parts compute.
    static Result<std::unique_ptr<ShardedUnits>> create(const TrainWeights& weights, DeviceRanks& ranks,
                                                        DeviceTrace& trace, const DeviceInfo& device,
                                                        const Stream& compute);

    void begin_step();  // what a step draws anew is other from here on
    // Around the work that reads a part's weights or writes its gradient. back: on the way back.
    Status enter(size_t part, bool back);
    Status leave(size_t part, bool back);
    // What TrainWork::published is then.
    const std::byte* published(size_t part) const { return weights_.gathered(part); }

    // The way back of a micro-batch: its sums over all ranks go to `target` [what the rank keeps, vectors].
    Status begin_back(float* target);
    // Where gradients of a part would begin, were the flat arrays there; before the work that writes them.
    Result<float*> gradient(size_t part);
    float* of_vectors() const { return vectors_ - weights_.flat().matrix_elements; }
    // Behind leave(): sends the part's gradient.
    Status reduce(size_t part);
    Status reduce_vectors();
    // target += other, of two targets.
    Status add(float* target, const float* other);
    // What the compute stream does from here on sees all sums.
    Status join();

private:
    ShardedUnits(const TrainWeights& weights, DeviceRanks& ranks, DeviceTrace& trace, const Stream& compute,
                 Stream stream)
        : weights_(weights), ranks_(ranks), trace_(trace), compute_(compute), stream_(std::move(stream)) {}
    Status mark(std::string_view name, int64_t number = -1) {
        return trace_.mark(DeviceTrace::exchange, name, number, stream_);
    }
    static int64_t most_received(const TrainWeights& weights, const FlatShards& shards);
    Status gather(size_t part, bool back);
    Status exchange_gradient(size_t part, float* first);
    Status add_freely(size_t part, float* first);

    const TrainWeights& weights_;
    DeviceRanks& ranks_;
    DeviceTrace& trace_;
    const Stream& compute_;
    Stream stream_;
    std::optional<DeviceArena> memory_;
    std::vector<std::vector<FlatRun>> runs_;  // of every part
    std::vector<std::vector<FlatLayout::Range>> gaps_;
    struct Slot {
        float* gradient = nullptr;
        int64_t part = -1;   // that lies there
        bool drawn = false;  // with what a step draws anew
        std::optional<Event> free, ready, sent;
    };
    std::array<Slot, 3> slots_;
    std::vector<float*> received_;  // of other ranks; null at the own place
    float* vectors_ = nullptr;
    float* target_ = nullptr;
    int64_t version_ = -1;
    // Of the last parts that were left: the host is no further ahead, where it would wait for GPUs that may be gone.
    std::array<std::optional<Event>, 4> left_;
    size_t leaves_ = 0;
    std::optional<Event> changed_, written_, vectors_sent_, joined_;
};

}  // namespace nibble
