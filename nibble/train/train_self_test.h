// Tests random rounding before a run begins, because known failures in other programs gave no error message.
#pragma once

#include "train/train_precision.h"

#include <span>

namespace nibble {

// Tests the recipe's random numbers and rounding: mean and variance of stochastic rounding, different draws for steps,
// roles and elements, and nonzero products of quantized gradients. Error: the failed test, with its numbers.
Status train_self_test(const TrainPrecision& precision, uint64_t seed);
// Parts of the test. check_roundings(): E2M1 roundings of one value have the mean and variance of a random choice
// between its neighbours. check_codes(): most codes of gradients are not zero.
Status check_roundings(float value, std::span<const double> rounded);
Status check_codes(std::span<const float> codes);

}  // namespace nibble
