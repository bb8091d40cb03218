// A micro-batch: rows of a step that a GPU computes together, and the arrays that kernels read.
#pragma once

#include "data/train_batch.h"
#include "model/batch.h"

#include <span>
#include <vector>

namespace nibble {

struct MicroBatch {
    const TrainBatch* batch = nullptr;
    int64_t row = 0, rows = 0;  // rows of the batch
    int64_t first_row = 0;      // number of the first row in the step, over all batches

    int64_t tokens() const { return rows * batch->seq; }
    std::span<const int32_t> ids() const { return part(batch->tokens); }
    std::span<const int32_t> labels() const { return part(batch->labels); }
    std::span<const float> weights() const {
        return batch->weights.empty() ? std::span<const float>() : part(batch->weights);
    }

private:
    template <class T>
    std::span<const T> part(const std::vector<T>& all) const {
        return std::span(all).subspan(static_cast<size_t>(row * batch->seq), static_cast<size_t>(tokens()));
    }
};

// Cuts batches, in order, into micro-batches of at most `rows` rows. The last one of a batch may have fewer.
std::vector<MicroBatch> cut_micro_batches(std::span<const TrainBatch> batches, int64_t rows);

// Returns the documents of the micro-batch as texts without logits.
Batch texts_of(const MicroBatch& m);
// Returns [tokens]: the row in which the document of each row begins.
std::vector<int32_t> first_rows(const MicroBatch& m);

// Rows of the micro-batch by token id: rows of ids[i] are order[begin[i]] ... order[begin[i + 1] - 1], ascending.
struct RowsById {
    std::vector<int32_t> ids, begin, order;
};
RowsById rows_by_id(std::span<const int32_t> tokens);

}  // namespace nibble
