// The kernels that this CPU gets: the first entries of the tables may be for another one.
#pragma once

#include "kernels/quantize.h"
#include "kernels/solver.h"

namespace nibble::test {

inline const QuantizeKernels& best_quantize() { return **select_quantize_kernels(); }
inline const SolverKernels& best_solver() { return **select_solver_kernels(); }

}  // namespace nibble::test
