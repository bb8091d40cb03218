// Computes the device memory of a training step from shapes, before anything is allocated.
#pragma once

#include "base/error.h"

#include <cstdint>
#include <string>
#include <vector>

namespace nibble {

// Which intermediates of a forward pass are kept for the backward pass. The choice does not change results.
enum class Recompute : uint8_t {
    automatic,  // `none` if it fits in memory, else `block`
    none,       // all intermediates
    block,      // the inputs of blocks; the rest is recomputed block by block
};

// Which data are split between GPUs. The choice does not change results.
enum class Sharding : uint8_t {
    states,  // masters and states (ZeRO-1); every GPU has all weights and gradients
    all,     // weights and gradients too (FSDP, ZeRO-3); a block is gathered before it computes and released afterwards
};

// The order in which gradients of several GPUs are added.
enum class GradientOrder : uint8_t {
    tree,  // in the order of the tree over all micro-batches, with the bits of one GPU
    free,  // by NCCL, in an unspecified order; a comparison shows the cost of the tree
};

struct TrainMemoryPlan {
    int64_t micro_batch = 0;  // rows
    Recompute recompute = Recompute::none;
    struct Item {
        std::string name;
        int64_t bytes = 0;
    };
    std::vector<Item> items;
    int64_t total() const;
    // "parameters 1.20 GiB, states 2.40 GiB, ..., together 9.87 GiB"
    std::string text() const;
};

std::string gib_of(int64_t bytes);
Error too_much_memory(const TrainMemoryPlan& least, int64_t free);

// Returns the rows of the largest micro-batch to try: `rows`, halved (rounded up) until they have at most `most_tokens`
// tokens, the limit of the kernels. Error: `micro_batch` rows (0: not given) or a single row have more.
Result<int64_t> most_rows(int64_t rows, int64_t micro_batch, int64_t seq, int64_t most_tokens);

// Chooses the plan with the least recomputation and then the most rows. If `micro_batch` is 0 it tries rows, rows / 2,
// rows / 4, ... (rounded up) without recomputation, then the same with recomputed blocks. `sizes` is a function
// TrainMemoryPlan(int64_t rows, Recompute). Error: the smallest plan does not fit either (with its sizes).
template <class Sizes>
Result<TrainMemoryPlan> choose_memory_plan(int64_t rows, int64_t micro_batch, Recompute recompute, int64_t free,
                                           const Sizes& sizes) {
    TrainMemoryPlan plan;
    for (const Recompute level : {Recompute::none, Recompute::block}) {
        if (recompute != Recompute::automatic && recompute != level) continue;
        for (int64_t some = micro_batch > 0 ? micro_batch : rows;; some = (some + 1) / 2) {
            plan = sizes(some, level);
            if (plan.total() <= free) return plan;
            if (micro_batch > 0 || some == 1) break;
        }
    }
    return too_much_memory(plan, free);
}

}  // namespace nibble
