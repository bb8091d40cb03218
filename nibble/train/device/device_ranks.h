// Training on several GPUs, one a process: what a step hands from rank to rank, so that gradients of micro-batches are
// added in the order of the tree over all of them (accumulation.h) and results do not depend on how many ranks there
// are.
//
//   Sharding::states  micro-batches are dealt in runs: a rank's gradient is a node of the tree. A rank gets the nodes
//                     of all ranks for its shard and adds them
//   Sharding::all     micro-batches are dealt by turns: what the ranks compute at one time are neighbours, whose sum is
//                     a node. They are added block by block (sharded_units.h), sums of turns in the tree's order
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
    // What other than NCCL hands bytes from GPU to GPU (for tests).
    using Link = std::function<Result<DeviceGroup>()>;
    // Device memory of buffers for what other ranks send, of the rank that keeps most. numbers: of others().
    static int64_t bytes(const FlatLayout& flat, const FlatShards& shards, int64_t numbers);
    struct Options {
        Sharding sharding = Sharding::states;
        GradientOrder order = GradientOrder::tree;
        int64_t numbers = 0;  // of others(), at most
        Link link;            // null: NCCL
    };
    // group null: one process, and nothing is handed to anybody. All ranks together.
    static Result<DeviceRanks> create(RankGroup* group, const FlatLayout& flat, const Options& options, int device);
    int rank() const { return group_ ? group_->rank() : 0; }
    int size() const { return group_ ? group_->size() : 1; }
    RankGroup* group() const { return group_; }
    const FlatShards& shards() const { return shards_; }
    int64_t elements() const { return shards_.elements(rank()); }  // of the matrices, that this rank keeps

    // Whose each of `pieces` micro-batches is. Error: they cannot be dealt so that sums are nodes of the tree.
    Result<std::vector<int>> deal(int64_t pieces) const { return deal_pieces(pieces, size(), shards_.sharding()); }
    // Sharding::states. This rank's run of any number.
    PieceRun run(int64_t pieces) const { return PieceRun::of(pieces, rank(), size()); }

    // The gradient of the whole step: of the first element that this rank keeps, and of the first vector's.
    struct Sum {
        const float* matrices = nullptr;
        const float* vectors = nullptr;
    };
    // Sharding::states. `own` (flat): this rank's; its memory is written. Only the first `present` ranks have one.
    Result<Sum> add(float* own, int present, const Stream& stream);
    GradientOrder order() const { return order_; }
    // GradientOrder::free. As DeviceGroup's; one process has nothing to add.
    Status add_freely(std::span<const DeviceGroup::Sum> sums, const Stream& stream);
    // Sums of one array of each rank, in the tree's order, into `to`; their memory is written, too.
    static Status add_nodes(std::vector<float*> nodes, float* to, int64_t count, const Stream& stream);
    // The same of vectors: `own` of this rank.
    Status add_vectors(float* own, float* to, const Stream& stream);
    // As DeviceGroup's; one process has nothing to send.
    Status exchange(std::span<const DeviceGroup::Part> send, std::span<const DeviceGroup::Part> receive,
                    const Stream& stream);
    // parts [square_sections]: this rank's sections are there, afterwards all.
    Status gather_sections(double* parts, const Stream& stream);
    // [size - 1, count]: what the other ranks have at `own`, until the next call; null: there are none.
    Result<const float*> others(const float* own, int64_t count, const Stream& stream);
    // Rank 0's numbers in the places of all others.
    struct Numbers {
        float* data = nullptr;
        int64_t count = 0;
    };
    Status take_from_first(std::span<const Numbers> arrays, const Stream& stream);
    // Sharding::states. Of every rank's shard (BF16, flat).
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
    std::vector<float*> matrices_, vectors_;  // from other ranks; null at the own place
    float* numbers_ = nullptr;                // [size - 1, most_numbers_]
    int64_t most_numbers_ = 0;
};

}  // namespace nibble
