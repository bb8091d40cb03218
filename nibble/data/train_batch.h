// The input of a training step: rows of tokens with labels, and the positions of documents.
//
// A row is the unit of the arithmetic: everything computed from a row (activations, scales of per-tensor recipes, its
// gradient) depends only on that row. Gradients of rows are added in a tree whose shape depends on the number of rows
// of the step. So the same rows give the same bits however they are divided into batches.
#pragma once

#include "base/error.h"

#include <cstdint>
#include <vector>

namespace nibble {

struct TrainBatch {
    int64_t rows = 0, seq = 0;    // rows of `seq` tokens each
    std::vector<int32_t> tokens;  // [rows, seq]
    // [rows, seq]: the token to predict; -1: no label (padding, messages of the user, prompts)
    std::vector<int32_t> labels;
    std::vector<float> weights;  // [rows, seq]: finite weight of each label's loss; empty: all 1
    // Indices into `tokens` at which documents begin, ascending; every multiple of seq is one. Attention and positions
    // start again at each document. Padding is a document without labels.
    std::vector<int64_t> documents;

    int64_t size() const { return rows * seq; }
};

// Checks sizes, ids below `vocab`, finite weights, and the rules for documents. The error names row and position.
Status check(const TrainBatch& batch, int64_t vocab);

// Creates a batch from tokens [rows, seq + 1]: each row is one document, and its labels are the next tokens.
TrainBatch next_token_batch(std::vector<int32_t> tokens, int64_t rows, int64_t seq);

}  // namespace nibble
