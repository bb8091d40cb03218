// The multiple-choice knapsack of the mixed-precision search: of every group one choice, least total score, total cost
// within a budget. Solved to proven optimality by CBC (single-threaded, so equal inputs give equal choices).
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

// Per group the index of its choice. Every group has at least one. Of choices that cost and lose as much, the first.
// Errors: the cheapest choices together exceed the budget (the caller knows the units, and says so in them first), a
// score that is no number >= 0, CBC without a proof.
Result<std::vector<size_t>> solve_knapsack(std::span<const std::vector<KnapsackChoice>> groups, int64_t budget);

}  // namespace nibble
