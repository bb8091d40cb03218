// The GPU that these tests run on, opened once, and what their checks say as assertions. Environment:
//   NIBBLE_DEVICE       cuda (default) or cuda:N
//   NIBBLE_CUDA_TESTS   all (default), small (short shapes) or tiny (a few launches of every kernel, for racecheck)
//   NIBBLE_CUDA_MEMORY  GiB of device memory for the checks' data (default 24)
#pragma once

#include "bench/kit.h"

#include <gtest/gtest.h>

namespace nibble::bench {

enum class Extent : uint8_t { all, small, tiny };
Extent extent();

// Ends the program where there is no GPU: a test of kernels that found none must not look like one that passed.
Kit& kit();

// Every check compared something and found nothing wrong. The counts become properties of the test in its XML or JSON.
void expect_all(const Result<std::vector<Check>>& checks);

}  // namespace nibble::bench
