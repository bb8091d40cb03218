// Divides the matrices of the flat arrays between GPUs. A rank keeps runs of whole sections of the norm
// (kernels/optimizer_cuda.h), so that no section is split. Every rank keeps all vectors.
#pragma once

#include "train/device/flat_layout.h"
#include "train/memory_plan.h"

#include <span>
#include <vector>

namespace nibble {

// Adjacent elements of one rank.
struct FlatRun {
    int rank = 0;
    int64_t begin = 0, end = 0;  // elements of the flat arrays
    int64_t local = 0;           // offset in the elements that the rank keeps
    int first_section = 0, sections = 0;
    int64_t elements() const { return end - begin; }
};

class FlatShards {
public:
    // states: one run per rank. all: one run per rank in each part of `flat` (flat_parts()), so that every rank takes
    // part in every gather.
    static FlatShards make(const FlatLayout& flat, Sharding sharding, int size);

    Sharding sharding() const { return sharding_; }
    int size() const { return static_cast<int>(elements_.size()); }
    std::span<const FlatRun> runs() const { return runs_; }  // ascending; together they cover all matrices
    int64_t elements(int rank) const { return elements_[static_cast<size_t>(rank)]; }
    int largest() const;  // rank that keeps the most elements
    // Returns the runs in [begin, end), cut at its ends. `local` is that of the cut begin; sections stay those of the
    // run.
    std::vector<FlatRun> within(int64_t begin, int64_t end) const;

private:
    Sharding sharding_ = Sharding::states;
    std::vector<FlatRun> runs_;
    std::vector<int64_t> elements_;  // by rank
};

// Returns the parts that a forward pass reads as a unit, in the order of the flat arrays: the embedding, each block,
// and the head unless it is tied.
std::vector<FlatLayout::Range> flat_parts(const FlatLayout& flat);
// Returns the ranges in [begin, end) that belong to no matrix.
std::vector<FlatLayout::Range> flat_gaps(const FlatLayout& flat, int64_t begin, int64_t end);

}  // namespace nibble
