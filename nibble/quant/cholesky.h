// The factor GPTQ works with: upper triangular U with H^-1 = U^T U, in FP64.
//
// One elimination instead of three factorizations: with J the reversal of rows and columns and J H J = L L^T,
// U = J L^-1 J. [J H J | I] is eliminated row panel by row panel to [L^T | L^-1]; 2/3 n^3 operations. Each entry is one
// chain of fused multiply-adds, so threads and instruction sets do not show in a bit.
#pragma once

#include "base/error.h"
#include "base/thread_pool.h"
#include "kernels/solver.h"

#include <span>
#include <vector>

namespace nibble {

// h: [n, n] row-major, the upper triangle is read. Returns U [n, n], zero below the diagonal. A matrix that is not
// positive definite (or not finite) is an error that names the row.
Result<std::vector<double>> inverse_factor(std::span<const double> h, int64_t n, const SolverKernels& kernels,
                                           ThreadPool& pool);

}  // namespace nibble
