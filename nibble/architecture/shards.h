// The rows of every tensor that a rank has when several ranks run one model together. Ranks divide the outputs of
// linears, whole heads and whole experts, so that no sum crosses ranks. The loader, memory plans and `nibble inspect
// --shards` read this table.
#pragma once

#include "architecture/tensor_list.h"

#include <span>
#include <vector>

namespace nibble {

struct RowRange {
    int64_t begin = 0, end = 0;  // rows [begin, end) of the first dimension, or of [experts * rows, columns]
    bool operator==(const RowRange&) const = default;
};

// Returns the rows of rank `rank` of `ranks`, ascending; adjacent ranges are joined. The degree must be allowed.
std::vector<RowRange> rank_rows(const TensorEntry& tensor, int ranks, int rank);

// Returns whether every tensor can be divided into rows for `ranks` ranks.
bool allows_ranks(std::span<const TensorEntry> tensors, int ranks);
// Error: the model cannot be divided by `ranks`; the message names a tensor, its parts, and the degrees up to
// `most_ranks` that work.
inline constexpr int most_ranks = 64;
Status check_ranks(std::span<const TensorEntry> tensors, int ranks);

// Returns the tensors of a model and of its layers for multi-token prediction.
std::vector<TensorEntry> sharded_tensors(const ModelConfig& model);

}  // namespace nibble
