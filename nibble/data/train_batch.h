// What one step of training reads: rows of tokens with their labels, and where documents begin.
//
// A row is the unit of the arithmetic: everything that is computed of a row (activations, scales of per-tensor
// recipes, its gradient) depends on that row alone, and gradients are added over rows in a tree whose shape depends on
// the number of rows of the step. So the same rows give the same bits however they are cut into batches.
#pragma once

#include "base/error.h"

#include <cstdint>
#include <vector>

namespace nibble {

struct TrainBatch {
    int64_t rows = 0, seq = 0;    // rows of `seq` tokens each
    std::vector<int32_t> tokens;  // [rows, seq]
    std::vector<int32_t> labels;  // [rows, seq]: the token to predict, -1: none (padding, the user's turns, prompts)
    std::vector<float> weights;   // [rows, seq] of each label's loss, finite; empty: 1 each
    // Where documents begin, as indices into `tokens`, ascending; every multiple of seq is one. Attention does not see
    // past a document's begin and positions count from it. Padding is a document of its own without labels.
    std::vector<int64_t> documents;

    int64_t size() const { return rows * seq; }
};

// Sizes, ids below `vocab`, weights finite, documents as stated; the error names row and position.
Status check(const TrainBatch& batch, int64_t vocab);

// A batch whose rows are one document each and whose labels are the next tokens: tokens [rows, seq + 1].
TrainBatch next_token_batch(std::vector<int32_t> tokens, int64_t rows, int64_t seq);

}  // namespace nibble
