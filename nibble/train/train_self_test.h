// What is looked at before a run with random rounding begins: every failure of it known from other programs was silent.
#pragma once

#include "train/train_precision.h"

#include <span>

namespace nibble {

// The recipe's own random numbers and rounding: mean and variance of stochastic rounding, draws of steps, roles and
// elements that differ, products of quantized gradients that are not zero. Error: what is wrong, with the numbers.
Status train_self_test(const TrainPrecision& precision, uint64_t seed);
// Its parts. Whether E2M1 roundings of one value have the mean and the variance of a coin between its neighbours;
// whether codes of gradients are mostly not zero.
Status check_roundings(float value, std::span<const double> rounded);
Status check_codes(std::span<const float> codes);

}  // namespace nibble
