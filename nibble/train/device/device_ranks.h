// Training on several GPUs, one per process: exchanges the data of a step between ranks. Gradients of micro-batches are
// added in the order of the tree over all of them (accumulation.h), so that results do not depend on the number of
// ranks.
//
//   Sharding::states  each rank has a contiguous run of micro-batches, whose gradient is a node of the tree. A rank
//                     receives the nodes of all ranks for its shard and adds them
//   Sharding::all     micro-batches alternate between ranks. Those that are computed at the same time are adjacent, and
//                     their sum is a node. Gradients are added block by block (sharded_units.h), then in the order of
//                     the tree
#pragma once

#include "tensor/device_group.h"
#include "train/accumulation.h"
#include "train/device/flat_shards.h"
#include "train/device/piece_run.h"
#include "train/train_ranks.h"

#include <functional>
#include <optional>

namespace nibble {

class DeviceRanks {
public:
    // Replaces NCCL as the transport between GPUs in tests.
    using Link = std::function<Result<DeviceGroup>()>;
    // Device memory of the receive buffers on the rank with the most. numbers: of others().
    static int64_t bytes(const FlatLayout& flat, const FlatShards& shards, int64_t numbers);
    struct Options {
        Sharding sharding = Sharding::states;
        GradientOrder order = GradientOrder::tree;
        int64_t numbers = 0;  // maximum count of others()
        Link link;            // null: NCCL
    };
    // All ranks call it together. group null: a single process, which exchanges nothing.
    static Result<DeviceRanks> create(RankGroup* group, const FlatLayout& flat, const Options& options, int device);
    int rank() const { return group_ ? group_->rank() : 0; }
    int size() const { return group_ ? group_->size() : 1; }
    RankGroup* group() const { return group_; }
    const FlatShards& shards() const { return shards_; }
    int64_t elements() const { return shards_.elements(rank()); }  // elements of the matrices on this rank

    // Returns the rank of each of `pieces` micro-batches. Error: no distribution makes their sums nodes of the tree.
    Result<std::vector<int>> owners(int64_t pieces) const { return piece_owners(pieces, size(), shards_.sharding()); }
    // Sharding::states: returns this rank's run of micro-batches.
    PieceRun run(int64_t pieces) const { return PieceRun::of(pieces, rank(), size()); }

    // The gradient of the whole step: pointers to this rank's first matrix element and to the first vector element.
    struct Sum {
        const float* matrices = nullptr;
        const float* vectors = nullptr;
    };
    // Sharding::states: adds the gradients of all ranks. `own` (flat) is this rank's and is overwritten. Only the first
    // `present` ranks have one.
    Result<Sum> add(float* own, int present, const Stream& stream);
    GradientOrder order() const { return order_; }
    // GradientOrder::free: adds with NCCL, like DeviceGroup. No effect with one process.
    Status add_freely(std::span<const DeviceGroup::Sum> sums, const Stream& stream);
    // Adds one array per rank in the tree's order and writes the sum to `to`. The arrays are overwritten.
    static Status add_nodes(std::vector<float*> nodes, float* to, int64_t count, const Stream& stream);
    // Adds the vectors of all ranks; `own` is this rank's.
    Status add_vectors(float* own, float* to, const Stream& stream);
    // Like DeviceGroup::exchange(). No effect with one process.
    Status exchange(std::span<const DeviceGroup::Part> send, std::span<const DeviceGroup::Part> receive,
                    const Stream& stream);
    // Completes parts [square_sections], in which this rank's sections are set, with the sections of the other ranks.
    Status gather_sections(double* parts, const Stream& stream);
    // Returns [size - 1, count]: the values of `own` on the other ranks, valid until the next call; null: a single
    // process.
    Result<const float*> others(const float* own, int64_t count, const Stream& stream);
    // Replaces arrays of all other ranks by those of rank 0.
    struct Numbers {
        float* data = nullptr;
        int64_t count = 0;
    };
    Status take_from_first(std::span<const Numbers> arrays, const Stream& stream);
    // Sharding::states: collects the shards of all ranks (BF16, flat).
    Status gather_published(std::byte* published, const Stream& stream);
    Status wait(const Stream& stream);
    Status wait(const Event& event);

private:
    RankGroup* group_ = nullptr;
    std::optional<DeviceGroup> device_;
    std::optional<DeviceArena> memory_;
    FlatShards shards_;
    GradientOrder order_ = GradientOrder::tree;
    int64_t matrix_elements_ = 0, vector_elements_ = 0;
    std::vector<float*> matrices_, vectors_;  // from other ranks; null at this rank's index
    float* numbers_ = nullptr;                // [size - 1, most_numbers_]
    int64_t most_numbers_ = 0;
};

}  // namespace nibble
