// What GPTQ-like solvers need of a second-moment matrix: an order of its rows and the factor that spreads the error of
// one to those after it.
#pragma once

#include "quant/gram.h"

namespace nibble {

struct FeedbackOptions {
    double damping = 0;  // times the mean of the diagonal, added to the diagonal
    // Rows come in blocks of this many: blocks by descending sum of their diagonal, inside a block by descending
    // diagonal (stable). 0: natural order.
    int64_t block = 0;
};

// With H the damped matrix in `order` and H^-1 = U^T U, U upper triangular: rounding variable i by r costs
// (r weight[i])^2 and is best answered by x_j -= r * spread[i, j] for all j > i.
struct Feedback {
    int64_t n = 0;
    std::vector<int32_t> order;  // position -> index
    std::vector<float> weight;   // 1 / U[i, i]
    std::vector<float> spread;   // [n, n]: U[i, j] / U[i, i] above the diagonal, zero elsewhere
    bool answers = true;         // false: the matrix has no such factor; weights are those of its diagonal, no spread

    const float* row(int64_t i) const { return spread.data() + i * n; }
};

// The diagonal with its damping. Variables that were never seen (diagonal 0) get the mean of the diagonal, all of
// them 1.
std::vector<double> damped_diagonal(const Gram& gram, double damping);

// In FP32; a matrix that is not positive definite there (little damping) in FP64, and where it is not either, by its
// diagonal alone.
Feedback make_feedback(const Gram& gram, const FeedbackOptions& options, const SolverKernels& kernels,
                       ThreadPool& pool);

}  // namespace nibble
