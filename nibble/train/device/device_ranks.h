// Training on several GPUs, one a process: what a step hands from rank to rank. Micro-batches are dealt in runs, so
// that a rank's gradient is a node of the tree over all of them (accumulation.h); a rank gets the nodes of all ranks
// for its shard and adds them in the tree's order, so results do not depend on how many ranks there are.
//
// Two ways to the same bits: NCCL, from GPU to GPU, and its slow twin over host memory and the ranks' sockets, which
// needs no NCCL and takes several ranks on one GPU.
#pragma once

#include "tensor/device_group.h"
#include "train/device/flat_layout.h"
#include "train/device/micro_batch.h"
#include "train/train_ranks.h"

#include <optional>

namespace nibble {

enum class RankLink : uint8_t { nccl, host };

class DeviceRanks {
public:
    // Device memory of buffers for what other ranks send.
    static int64_t bytes(const FlatLayout& flat, int size);
    // group null: one process, and nothing is handed to anybody. All ranks together.
    static Result<DeviceRanks> create(RankGroup* group, RankLink link, const FlatLayout& flat, int device);

    int rank() const { return group_ ? group_->rank() : 0; }
    int size() const { return group_ ? group_->size() : 1; }
    RankGroup* group() const { return group_; }
    const FlatShard& shard(int rank) const { return shards_[static_cast<size_t>(rank)]; }
    const FlatShard& shard() const { return shard(rank()); }

    // Device memory that every rank can count on, what bytes() says included: the least of all, several ranks on one GPU
    // with a part of it each. All ranks together.
    Result<int64_t> free_memory(int device) const;

    // Whether so many micro-batches can be dealt so that every rank has a node of the tree.
    static bool deals(int64_t pieces, int size);
    // Those of this rank, of all. Error: they cannot be dealt.
    Result<std::span<const MicroBatch>> share(std::span<const MicroBatch> pieces) const;

    // The gradient of the whole step from those of all ranks: of the own shard and of vectors, in place; the rest is
    // left as it was.
    Status add(float* gradient, const Stream& stream);
    // parts [square_sections]: this rank's sections are there, afterwards all.
    Status gather_sections(double* parts, const Stream& stream);
    // Of every rank's shard (BF16, flat).
    Status gather_published(std::byte* published, const Stream& stream);
    Status wait(const Stream& stream);

private:
    // An array in which every rank has a run: run r of all ranks is added up in rank r.
    struct Run {
        int64_t begin = 0, end = 0;
    };
    Status add_runs(float* gradient, std::span<const Run> runs, const Stream& stream);
    // Run r of rank r, to all others.
    Status gather_runs(std::byte* array, std::span<const Run> runs, int64_t element, const Stream& stream);
    using Part = DeviceGroup::Part;
    Status exchange(std::span<const Part> send, std::span<const Part> receive, const Stream& stream);

    RankGroup* group_ = nullptr;
    std::optional<DeviceGroup> nccl_;  // else over host memory
    std::optional<DeviceArena> memory_;
    std::vector<float*> landing_;  // by rank: [landing elements]; null at the own place
    std::vector<FlatShard> shards_;
    int64_t matrix_elements_ = 0, elements_ = 0;
};

}  // namespace nibble
