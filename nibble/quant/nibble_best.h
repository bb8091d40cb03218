// nibble_best: NVFP4 weights that minimize the curvature-weighted error tr(G E H E^T), E = W - decoded.
//
//   H = sum_t w_t x_t x_t^T   over the inputs of the linear, w_t = |g_t|^2, plus a uniform share over more rows
//                             (calibration_observer.h)
//   G = sum_t g_t g_t^T       over the gradients of its outputs (optional)
//   g_t: gradient of -log p(y_t) at the linear's output, y_t sampled from the model itself. H and G are then the
//        Kronecker factors of the curvature of KL(reference || quantized).
//
// The method is GPTQ (Frantar et al., 2023) on the vector of all weights, ordered row by row, with these additions:
//   * The E4M3 scale of a block of 16 is chosen when the block is reached, among 16 candidates, by the cost that the
//     rounding loop itself minimizes (kernels/solver.h).
//   * Column blocks, columns inside a block, and rows are processed in order of importance (the diagonals of H and G).
//     Blocks stay whole, so the stored layout does not change.
//   * With G, later rows also compensate the error of a row.
//   * On request, coordinate descent first improves the codes of 16 rows at a time with fixed scales (panel_descent.h).
// Measurements against static scales and plain GPTQ: docs/results/quality-at-4-bits.md.
//
// Arithmetic, the same for all kernels and any number of threads (columns and rows numbered in processing order):
//   w[r, j] starts as the weight (rounded to `weights`); s[r, j] = 0. For each row r, for each of its blocks:
//   w[r, j] = fma(-spreadG[r', r], w[r', j] - q[r', j], w[r, j]) for r' < r in order;  x_j = w[r, j] - s[r, j]
//   q, residuals = search_block(x);  s[r, j] = fma(residual_k, spreadH[k, j], s[r, j]) for all later j, k in order
#pragma once

#include "kernels/quantize.h"
#include "quant/feedback.h"
#include "quant/weight_solver.h"

namespace nibble {

// Solves a weight. Of the options, mix and token_weights describe how h was accumulated and are not read here. weight:
// [N, K], finite, K a multiple of 16. weights: the dtype from which codes are computed (WeightSpec::weights). h: [K,
// K]; g: [N, N] or null. out: nvfp4, with tensor_scale set by the caller (shared by a fusion group). Matrices that are
// not positive definite after damping are replaced by their diagonal, without feedback; the result reports it. Errors:
// a tensor scale for which nibble_best_holds() is false, statistics of another shape.
Result<SolveGaps> nibble_best(const MatrixView& weight, DType weights, const Gram& h, const Gram* g,
                              const NibbleBestOptions& options, const SolverKernels& kernels, ThreadPool& pool,
                              const QuantSpan& out);

// Returns true if the reciprocals of block scales are finite under this tensor scale.
inline bool nibble_best_holds(float tensor_scale) { return tensor_scale > 1e-30f; }

}  // namespace nibble
