// What each of several GPUs keeps of the matrices of the flat arrays: runs of whole sections of their norm
// (kernels/optimizer_cuda.h), so that no section is two ranks'. Vectors are everybody's.
#pragma once

#include "train/device/flat_layout.h"
#include "train/memory_plan.h"

#include <span>
#include <vector>

namespace nibble {

// Neighbours of one rank.
struct FlatRun {
    int rank = 0;
    int64_t begin = 0, end = 0;  // elements of the matrices
    int64_t local = 0;           // among what the rank keeps
    int first_section = 0, sections = 0;
    int64_t elements() const { return end - begin; }
};

class FlatShards {
public:
    // states: one run of each rank. all: a run of each rank in every part of `flat` (flat_parts()), so that all ranks
    // have a share of every gather.
    static FlatShards make(const FlatLayout& flat, Sharding sharding, int size);

    Sharding sharding() const { return sharding_; }
    int size() const { return static_cast<int>(elements_.size()); }
    std::span<const FlatRun> runs() const { return runs_; }  // ascending; together all matrices
    int64_t elements(int rank) const { return elements_[static_cast<size_t>(rank)]; }
    int largest() const;  // the rank that keeps most
    // What lies in [begin, end), cut there; `local` is that of the cut begin, sections stay those of the run.
    std::vector<FlatRun> within(int64_t begin, int64_t end) const;

private:
    Sharding sharding_ = Sharding::states;
    std::vector<FlatRun> runs_;
    std::vector<int64_t> elements_;  // by rank
};

// What a forward pass reads at once, in the order of the flat arrays: the embedding, every block, the head where it is
// no embedding.
std::vector<FlatLayout::Range> flat_parts(const FlatLayout& flat);
// Elements of [begin, end) that belong to no matrix.
std::vector<FlatLayout::Range> flat_gaps(const FlatLayout& flat, int64_t begin, int64_t end);

}  // namespace nibble
