// Distributes rows of unequal lengths to ranks and combines the results.
#pragma once

#include "data/train_batch.h"
#include "train/train_ranks.h"

#include <functional>
#include <span>
#include <vector>

namespace nibble {

// Returns begins [ranks + 1]: rank r has the rows begins[r] <= i < begins[r + 1], with about equally many tokens per
// rank. `tokens`: of every row.
std::vector<int64_t> divide_rows(std::span<const int64_t> tokens, int ranks);

// Concatenates the values of all ranks, in every rank. group null: a single process.
Result<std::vector<float>> of_all_ranks(RankGroup* group, std::vector<float> own);

// A loss of one row as a function of its labels' log-probabilities (0 where the label is -1): writes the slope of the
// step's loss by each of them and the row's part of the loss. `row` counts over the batches of the step. Every rank
// calls it once for every row: first for its own rows, in order, then for the others', whose slopes are ignored.
using RowObjective =
    std::function<Status(int64_t row, std::span<const float> log_probs, std::span<float> slopes, double& loss)>;

// Receives the log-probabilities of a row's labels, 0 where there is no label.
using OfRow = std::function<Status(size_t row, std::span<const float> log_probs)>;
// Computes log-probabilities of rows by all ranks. `own` computes a row in this process; `each` gets all rows, in
// order, in every rank.
Status row_log_probs(RankGroup* group, std::span<const TrainBatch* const> rows,
                     const std::function<Status(const TrainBatch& row, std::span<float> out)>& own, const OfRow& each);

// Calls `objective` for the rows outside [own.first, own.second), with the log-probabilities of all rows.
Status ask_of_others(const RowObjective& objective, std::span<const int64_t> tokens, std::pair<int64_t, int64_t> own,
                     std::span<const float> log_probs, std::span<double> losses);

}  // namespace nibble
