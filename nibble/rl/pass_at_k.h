// Accuracies of several answers to one question. Source: Chen et al. 2021, "Evaluating large language models trained on
// code".
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace nibble {

// Returns 1 - C(n - c, k) / C(n, k), where c of n answers are correct: the probability that at least one of k answers,
// drawn without replacement, is correct. Requires 1 <= k <= n.
double pass_at_k(int64_t n, int64_t c, int64_t k);

// Returns the probability that the most frequent of k answers, drawn without replacement, is correct. Tied answers
// count equally. answers [n]: equal strings are equal answers. right [n]. Requires 1 <= k <= n <= 20 (all subsets are
// counted).
double cons_at_k(std::span<const std::string> answers, std::span<const uint8_t> right, int64_t k);

}  // namespace nibble
