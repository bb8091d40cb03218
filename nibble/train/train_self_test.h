// What is looked at before a run with random rounding begins: every failure of it known from other programs was silent.
#pragma once

#include "train/train_precision.h"

namespace nibble {

// The recipe's own random numbers and rounding: mean and variance of stochastic rounding, draws of steps, roles and
// elements that differ, products of quantized gradients that are not zero. Error: what is wrong, with the numbers.
Status train_self_test(const TrainPrecision& precision, uint64_t seed);

}  // namespace nibble
