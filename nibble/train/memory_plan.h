// Device memory of a training step, computed from shapes before anything is allocated.
#pragma once

#include "base/error.h"

#include <cstdint>
#include <string>
#include <vector>

namespace nibble {

// What is kept of a forward pass for the way back. Results have the same bits.
enum class Recompute : uint8_t {
    automatic,  // none where it fits
    none,       // all intermediates
    block,      // the inputs of blocks; the rest is computed again, block by block
};

// What is spread over GPUs. Results have the same bits.
enum class Sharding : uint8_t {
    states,  // masters and states (ZeRO-1); weights and gradients are whole on every GPU
    all,     // weights and gradients too (FSDP, ZeRO-3): a block is gathered before it computes and let go behind
};

// How gradients of several GPUs are added.
enum class GradientOrder : uint8_t {
    tree,  // in the order of the tree over all micro-batches: one GPU's bits
    free,  // by NCCL, in an order of its own: what the tree costs shows beside it
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

// Rows of the largest micro-batch to try: `rows`, halved (rounded up) until they have no more than `most_tokens`
// tokens, which is what kernels take at once. Error: `micro_batch` (0: free) or a single row has more.
Result<int64_t> most_rows(int64_t rows, int64_t micro_batch, int64_t seq, int64_t most_tokens);

// The least that is computed again, then the most rows: `micro_batch` 0 tries rows, rows / 2, rows / 4 ... (rounded up)
// with everything kept, then the same with blocks computed again. `sizes`: TrainMemoryPlan(int64_t rows, Recompute).
// Error: the least does not fit either, with its sizes.
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
