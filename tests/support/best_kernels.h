// The fastest kernels that this CPU supports; the first entries of the tables may need another CPU.
#pragma once

#include "kernels/quantize.h"
#include "kernels/solver.h"

namespace nibble::test {

inline const QuantizeKernels& best_quantize() { return **select_quantize_kernels(); }
inline const SolverKernels& best_solver() { return **select_solver_kernels(); }

}  // namespace nibble::test
