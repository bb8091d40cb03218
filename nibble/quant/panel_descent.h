// Coordinate descent over the codes of a few rows at once, scales held: lowers tr(S E H E^T), E = target - decoded.
#pragma once

#include "kernels/solver.h"
#include "quant/feedback.h"

#include <vector>

namespace nibble {

// Rows of a matrix while they are solved, [rows, n], columns in order.
struct Panel {
    int64_t rows = 0, n = 0;
    std::vector<float> target;    // what the rows should decode to
    std::vector<float> multiple;  // E2M1 values
    std::vector<float> scale;     // of each element's block
};

// H with its damping in the order of `columns`, in FP32.
struct DescentMatrix {
    std::vector<float> h, inverse_diagonal;
};
DescentMatrix descent_matrix(const Gram& gram, const Feedback& columns, double damping, ThreadPool& pool);

// At most `sweeps` times over all rows, until nothing changes. coupling: S [rows, rows]; empty: the identity.
void descend(Panel& panel, const DescentMatrix& matrix, const std::vector<double>& coupling, int sweeps,
             const SolverKernels& kernels);

// S of rows [first, first + count) of an ordered G: what remains of G when the rows after them answer their errors,
// (U^T U)^-1 with U their diagonal block of the factor.
std::vector<double> remaining_coupling(const Feedback& rows, int64_t first, int64_t count);

}  // namespace nibble
