// The order in which gradients of micro-batches are added. It is that of GradientTree: a binary counter. Level k holds
// the sum of 2^k adjacent micro-batches. Two sums of one level are added (the earlier one is the left operand) and move
// up one level. At the end the levels are added from the lowest to the highest. AccumulationPlan expresses this as a
// plan of buffers before the step: each micro-batch writes one buffer, then some buffers are added to others.
#pragma once

#include "base/error.h"
#include "train/memory_plan.h"

#include <cstdint>
#include <utility>
#include <vector>

namespace nibble {

struct AccumulationPlan {
    struct Piece {
        int target = 0;                         // buffer that the micro-batch writes
        std::vector<std::pair<int, int>> adds;  // then, in order: buffer first += buffer second
    };
    std::vector<Piece> pieces;
    std::vector<std::pair<int, int>> last;  // additions after the last micro-batch
    int result = 0;                         // buffer that holds the sum at the end
    int buffers = 1;

    static AccumulationPlan make(int64_t micro_batches);
};

// Returns the rank of each micro-batch of a step. `size` ranks compute in parallel. Depending on `sharding` each rank
// gets a contiguous run, or micro-batches alternate between ranks (0, 1, 0, 1). Error: the sums of runs, or of
// micro-batches that are computed at the same time, are not nodes of the tree.
Result<std::vector<int>> piece_owners(int64_t pieces, int size, Sharding sharding);

}  // namespace nibble
