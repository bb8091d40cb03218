// The order in which gradients of micro-batches are added, as GradientTree's: a binary counter. Level k holds the sum
// of 2^k neighbours; two of one level are added (the earlier one is the left operand) and go up; at the end the levels
// are added from the lowest up. Here as a plan of buffers, made before the step: a micro-batch writes into a buffer,
// then some buffers are added to others.
#pragma once

#include "base/error.h"
#include "train/memory_plan.h"

#include <cstdint>
#include <utility>
#include <vector>

namespace nibble {

struct AccumulationPlan {
    struct Piece {
        int target = 0;                         // the buffer that the micro-batch writes
        std::vector<std::pair<int, int>> adds;  // then: buffer first += buffer second
    };
    std::vector<Piece> pieces;
    std::vector<std::pair<int, int>> last;  // after all
    int result = 0;                         // the buffer that holds the sum then
    int buffers = 1;

    static AccumulationPlan make(int64_t micro_batches);
};

// Whose each of a step's micro-batches is, of `size` ranks that compute side by side: in runs, or by turns (0, 1, 0,
// 1). Error: sums of runs, or of what is computed at one time, are no nodes of the tree.
Result<std::vector<int>> deal_pieces(int64_t pieces, int size, Sharding sharding);

}  // namespace nibble
