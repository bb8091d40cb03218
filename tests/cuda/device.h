// Opens the GPU of these tests once, and turns the results of checks into assertions. Environment:
//   NIBBLE_DEVICE       cuda (default) or cuda:N
//   NIBBLE_CUDA_TESTS   all (default), small (short shapes) or tiny (a few launches of every kernel, for racecheck)
//   NIBBLE_CUDA_MEMORY  GiB of device memory for the checks' data (default 24)
#pragma once

#include "gpu_bench/kit.h"

#include <gtest/gtest.h>

namespace nibble::bench {

enum class Extent : uint8_t { all, small, tiny };
Extent extent();

// Ends the program if there is no GPU, because kernel tests without a GPU must not appear to pass.
Kit& kit();

// Expects that every check compared values and found no error. The counts become properties of the test in its XML or
// JSON.
void expect_all(const Result<std::vector<Check>>& checks);

}  // namespace nibble::bench
