// Packs rollouts into rows of training.
#pragma once

#include "data/train_batch.h"
#include "rl/rollout.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace nibble {

// Rollouts as one training row: the tokens of prompts and answers, with labels where the model wrote.
struct RolloutRow {
    TrainBatch batch;
    struct Part {
        size_t rollout = 0, begin = 0, size = 0;  // position of the answer's labels in the row
    };
    std::vector<Part> parts;
};
// Packs rollouts [first, last), in order, into rows of up to `row_tokens` tokens with at least one rollout per row.
// Rollouts without tokens are left out.
std::vector<RolloutRow> rollout_rows(const RolloutBatch& batch, size_t first, size_t last, int64_t row_tokens);
// Returns the smallest limit of tokens that gives at most P rows, where P is the number of rows under `row_tokens`,
// rounded up to a power of two.
int64_t even_row_tokens(const RolloutBatch& batch, size_t first, size_t last, int64_t row_tokens);
// Returns an upper bound of the rows for `rollouts` rollouts of up to `length` tokens.
int64_t most_rollout_rows(int64_t rollouts, int64_t length, int64_t row_tokens);

}  // namespace nibble
