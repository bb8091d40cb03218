// Coordinate descent over the codes of a few rows at once with fixed scales: reduces tr(S E H E^T), E = target -
// decoded.
#pragma once

#include "kernels/solver.h"
#include "quant/feedback.h"

#include <vector>

namespace nibble {

// Rows of a matrix during the descent, [rows, n], columns in the solver's order.
struct Panel {
    int64_t rows = 0, n = 0;
    std::vector<float> target;    // values that the rows should decode to
    std::vector<float> multiple;  // E2M1 values
    std::vector<float> scale;     // block scale of each element
};

// The damped H in the order of `columns`, in FP32.
struct DescentMatrix {
    std::vector<float> h, inverse_diagonal;
};
DescentMatrix descent_matrix(const Gram& gram, const Feedback& columns, double damping, ThreadPool& pool);

// Repeats sweeps over all rows, at most `sweeps`, until nothing changes. coupling: S [rows, rows]; empty: the identity.
void descend(Panel& panel, const DescentMatrix& matrix, const std::vector<double>& coupling, int sweeps,
             const SolverKernels& kernels);

// Returns S for rows [first, first + count) of an ordered G: the part of G that remains when later rows compensate
// their errors, (U^T U)^-1 with U their diagonal block of the factor.
std::vector<double> remaining_coupling(const Feedback& rows, int64_t first, int64_t count);

}  // namespace nibble
