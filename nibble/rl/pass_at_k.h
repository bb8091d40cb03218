// Accuracies of several answers to one question. Chen et al. 2021, "Evaluating large language models trained on code".
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace nibble {

// 1 - C(n - c, k) / C(n, k) for c right ones of n: the chance that k answers drawn without repetition hold a right one.
// 1 <= k <= n.
double pass_at_k(int64_t n, int64_t c, int64_t k);

// The chance that the most frequent of k answers drawn without repetition is right; a tie gives each of the tied the
// same share. answers [n]: equal strings are equal answers; right [n]. 1 <= k <= n <= 20: all subsets are counted.
double cons_at_k(std::span<const std::string> answers, std::span<const uint8_t> right, int64_t k);

}  // namespace nibble
