// Error feedback of GPTQ-like solvers, derived from a second-moment matrix: an order of its rows, and the factor that
// distributes the rounding error of one variable to later ones.
#pragma once

#include "quant/gram.h"

namespace nibble {

struct FeedbackOptions {
    double damping = 0;  // added to the diagonal, as a multiple of its mean
    // Rows are ordered in blocks of this size: blocks by descending sum of their diagonal, rows inside a block by
    // descending diagonal (stable). 0: natural order.
    int64_t block = 0;
};

// With H the damped matrix in `order` and H^-1 = U^T U, U upper triangular: a rounding error r of variable i costs (r
// weight[i])^2, and the best compensation is x_j -= r * spread[i, j] for all j > i.
struct Feedback {
    int64_t n = 0;
    std::vector<int32_t> order;  // position -> index
    std::vector<float> weight;   // 1 / U[i, i]
    std::vector<float> spread;   // [n, n]: U[i, j] / U[i, i] above the diagonal, zero elsewhere
    bool answers = true;  // false: the matrix has no such factor; weights are those of its diagonal, and spread is zero

    const float* row(int64_t i) const { return spread.data() + i * n; }
};

// Returns the diagonal with damping. Variables with diagonal 0 (never seen) get the mean of the diagonal, or 1 if all
// are 0.
std::vector<double> damped_diagonal(const Gram& gram, double damping);

// Computes the feedback in FP32. A matrix that is not positive definite in FP32 (little damping) is factored in FP64;
// if that fails as well, only its diagonal is used (answers = false).
Feedback make_feedback(const Gram& gram, const FeedbackOptions& options, const SolverKernels& kernels,
                       ThreadPool& pool);

}  // namespace nibble
