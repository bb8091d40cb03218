// Training on several GPUs, one a process: what a step hands from rank to rank. Micro-batches are dealt in runs, so
// that a rank's gradient is a node of the tree over all of them (accumulation.h); a rank gets the nodes of all ranks
// for its shard and adds them in the tree's order, so results do not depend on how many ranks there are.
#pragma once

#include "tensor/device_group.h"
#include "train/device/flat_layout.h"
#include "train/device/piece_run.h"
#include "train/train_ranks.h"

#include <optional>

namespace nibble {

class DeviceRanks {
public:
    // Device memory of buffers for what other ranks send.
    // numbers: of others() at most.
    static int64_t bytes(const FlatLayout& flat, int64_t numbers, int rank, int size);
    // group null: one process, and nothing is handed to anybody. All ranks together.
    static Result<DeviceRanks> create(RankGroup* group, const FlatLayout& flat, int64_t numbers, int device);

    int rank() const { return group_ ? group_->rank() : 0; }
    int size() const { return group_ ? group_->size() : 1; }
    RankGroup* group() const { return group_; }
    const FlatShard& shard() const { return shards_[static_cast<size_t>(rank())]; }

    // Micro-batches [begin, end) of `pieces` that are this rank's. Error: they cannot be dealt so that every rank has a
    // node of the tree.
    struct Share {
        int64_t begin = 0, end = 0;
    };
    Result<Share> share(int64_t pieces) const;
    // The same of any number.
    PieceRun run(int64_t pieces) const { return PieceRun::of(pieces, rank(), size()); }

    // The gradient of the whole step: of the shard's first element, and of the first vector's.
    struct Sum {
        const float* matrices = nullptr;
        const float* vectors = nullptr;
    };
    // `own` (flat): this rank's; its memory is written. Only the first `present` ranks have one.
    Result<Sum> add(float* own, int present, const Stream& stream);
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
    // Of every rank's shard (BF16, flat).
    Status gather_published(std::byte* published, const Stream& stream);
    Status wait(const Stream& stream);

private:
    RankGroup* group_ = nullptr;
    std::optional<DeviceGroup> device_;
    std::optional<DeviceArena> memory_;
    std::vector<FlatShard> shards_;
    int64_t matrix_elements_ = 0, vector_elements_ = 0;
    std::vector<float*> matrices_, vectors_;  // from other ranks; null at the own place
    float* numbers_ = nullptr;                // [size - 1, most_numbers_]
    int64_t most_numbers_ = 0;
};

}  // namespace nibble
