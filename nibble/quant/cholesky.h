// The factor used by GPTQ: the upper triangular U with H^-1 = U^T U.
//
// One elimination replaces three factorizations: with J the reversal of rows and columns and J H J = L L^T, U = J L^-1
// J. [J H J | I] is eliminated row panel by row panel to [L^T | L^-1]; 2/3 n^3 operations. Each entry is one chain of
// fused multiply-adds, so its bits do not depend on threads or instruction sets.
#pragma once

#include "base/error.h"
#include "base/thread_pool.h"
#include "kernels/solver.h"

#include <span>
#include <vector>

namespace nibble {

// Returns J U J [n, n], lower triangular with zeros above, from a = J H J [n, n], row-major, of which the upper
// triangle is read. FP32 is twice as fast and needs half the memory. Error: a matrix that is not positive definite in
// the type's arithmetic, or not finite; names the row of H.
template <class T>  // float, double
Result<std::vector<T>> reversed_inverse_factor(std::vector<T> a, int64_t n, const SolverKernels& kernels,
                                               ThreadPool& pool);

// Returns U [n, n] in FP64, zero below the diagonal. h: [n, n] row-major, of which the upper triangle is read. Error:
// see reversed_inverse_factor().
Result<std::vector<double>> inverse_factor(std::span<const double> h, int64_t n, const SolverKernels& kernels,
                                           ThreadPool& pool);

}  // namespace nibble
