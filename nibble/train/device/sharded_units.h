// Sharding::all: moves the parts of a model (flat_parts()) between GPUs. Before a part computes, its values are
// gathered from all GPUs and converted to operands. Its gradients are sent to the ranks that keep the part and added in
// the order of the tree. Both happen in a separate stream while other parts compute:
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
    // Bytes for gradients of the current parts and for data received from other ranks.
    static int64_t bytes(const TrainWeights& weights, const FlatShards& shards);
    // All arguments must outlive the units. `compute`: the stream in which parts compute.
    static Result<std::unique_ptr<ShardedUnits>> create(const TrainWeights& weights, DeviceRanks& ranks,
                                                        DeviceTrace& trace, const DeviceInfo& device,
                                                        const Stream& compute);

    void begin_step();  // marks the copies that are redrawn every step as outdated
    // Call them around the work that reads a part's weights or writes its gradient. back: in the backward pass.
    Status enter(size_t part, bool back);
    Status leave(size_t part, bool back);
    // Returns the value of TrainWork::published for this part.
    const std::byte* published(size_t part) const { return weights_.gathered(part); }

    // Begins the backward pass of a micro-batch. Its sums over all ranks go to `target`: the elements that the rank
    // keeps, then vectors.
    Status begin_back(float* target);
    // Returns the address at which gradients of the flat arrays would begin. Call it before the work that writes the
    // part's gradients.
    Result<float*> gradient(size_t part);
    float* of_vectors() const { return vectors_ - weights_.flat().matrix_elements; }
    // Sends the part's gradient. Call it after leave().
    Status reduce(size_t part);
    Status reduce_vectors();
    // target += other, for two targets.
    Status add(float* target, const float* other);
    // Later work of the compute stream waits for all sums.
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
    std::vector<std::vector<FlatRun>> runs_;  // by part
    std::vector<std::vector<FlatLayout::Range>> gaps_;
    struct Slot {
        float* gradient = nullptr;
        int64_t part = -1;   // part that is stored in the slot
        bool drawn = false;  // the copies that are redrawn every step are present
        std::optional<Event> free, ready, sent;
    };
    std::array<Slot, 3> slots_;
    std::vector<float*> received_;  // from other ranks; null at this rank's index
    float* vectors_ = nullptr;
    float* target_ = nullptr;
    int64_t version_ = -1;
    // Events of the last parts that were left. They limit how far the host runs ahead, so that it waits in
    // DeviceRanks::wait(), which notices ranks that have ended, and not inside a CUDA call.
    std::array<std::optional<Event>, 4> left_;
    size_t leaves_ = 0;
    std::optional<Event> changed_, written_, vectors_sent_, joined_;
};

}  // namespace nibble
