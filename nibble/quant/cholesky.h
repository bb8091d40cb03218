// The factor GPTQ works with: upper triangular U with H^-1 = U^T U.
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

// a: J H J [n, n] row-major, its upper triangle is read. Returns J U J [n, n], lower triangular, zeros above. FP32 is
// twice as fast and takes half the memory. A matrix that is not positive definite in the type's arithmetic (or not
// finite) is an error that names the row of H.
template <class T>  // float, double
Result<std::vector<T>> reversed_inverse_factor(std::vector<T> a, int64_t n, const SolverKernels& kernels,
                                               ThreadPool& pool);

// h: [n, n] row-major, the upper triangle is read. Returns U [n, n], zero below the diagonal, in FP64.
Result<std::vector<double>> inverse_factor(std::span<const double> h, int64_t n, const SolverKernels& kernels,
                                           ThreadPool& pool);

}  // namespace nibble
