// Rows of unequal lengths by several ranks: who has which, and what all of them know behind it.
#pragma once

#include "data/train_batch.h"
#include "train/train_ranks.h"

#include <functional>
#include <span>
#include <vector>

namespace nibble {

// Row i is that of rank r where begins[r] <= i < begins[r + 1]: neighbours, about equally many tokens for each.
// `tokens`: of every row.
std::vector<int64_t> deal_rows(std::span<const int64_t> tokens, int ranks);

// What every rank has, one behind the other, for all. group null: one process.
Result<std::vector<float>> of_all_ranks(RankGroup* group, std::vector<float> own);

// What one row wants: from the log-probabilities of its labels (0 where the label is -1) the slope of the step's loss
// with respect to each of them, and the row's part of the loss. `row` counts over the batches of the step. Asked once
// of every row in every rank: first of its own, in order, then of the others', whose slopes nobody reads.
using RowObjective =
    std::function<Status(int64_t row, std::span<const float> log_probs, std::span<float> slopes, double& loss)>;

// Log-probabilities of the labels of a row, 0 where there is none.
using OfRow = std::function<Status(size_t row, std::span<const float> log_probs)>;
// `own` computes a row by this process alone; `each` gets those of all rows, in order, in every rank.
Status row_log_probs(RankGroup* group, std::span<const TrainBatch* const> rows,
                     const std::function<Status(const TrainBatch& row, std::span<float> out)>& own, const OfRow& each);

// Asks `objective` of the rows outside [own.first, own.second), from the log-probabilities of all.
Status ask_of_others(const RowObjective& objective, std::span<const int64_t> tokens, std::pair<int64_t, int64_t> own,
                     std::span<const float> log_probs, std::span<double> losses);

}  // namespace nibble
