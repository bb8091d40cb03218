// Solves the multiple-choice knapsack of the mixed-precision search: one choice per group with the least total score
// and a total cost within a budget. CBC solves it to proven optimality (single-threaded, so equal inputs give equal
// choices).
#pragma once

#include "base/error.h"

#include <cstdint>
#include <span>
#include <vector>

namespace nibble {

struct KnapsackChoice {
    int64_t cost = 0;  // >= 0
    double score = 0;  // finite, >= 0
};

// Returns the index of the chosen element per group. Every group must have at least one element. Among choices with
// equal cost and score the first wins. Errors: the cheapest choices together exceed the budget; a score that is not a
// number >= 0; CBC finds no proof.
Result<std::vector<size_t>> solve_knapsack(std::span<const std::vector<KnapsackChoice>> groups, int64_t budget);

// Returns true if the library CBC can be loaded. Error: what is missing, and the package that has it.
Status check_knapsack_solver();

}  // namespace nibble
