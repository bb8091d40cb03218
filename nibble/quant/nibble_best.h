// nibble_best: NVFP4 weights that minimise the curvature-weighted error tr(G E H E^T), E = W - decoded.
//
//   H = sum_t w_t x_t x_t^T   over the rows that enter the linear, w_t = |g_t|^2, and a uniform share over more rows
//   (calibration_observer.h)
//   G = sum_t g_t g_t^T       over the gradients that leave it (optional)
//   g_t: gradient of -log p(y_t) at the linear's output, y_t sampled from the model itself; then H and G are the
//   Kronecker factors of the curvature of KL(reference || quantized)
//
// GPTQ (Frantar et al., 2023) on the vector of all weights, ordered row by row, with these additions:
//   * the E4M3 scale of a block of 16 is chosen when the block's turn comes, among 16 candidates, by the loop's own
//   cost
//     of rounding the block with it (kernels/solver.h);
//   * column blocks, columns inside a block, and rows come in order of importance (the diagonals of H and G); blocks
//   stay
//     whole, so the stored layout does not change;
//   * with G, the error of a row is also answered by the rows after it;
//   * before that, the codes of 16 rows at a time descend together by coordinates on request, scales held
//     (panel_descent.h).
// Measured against static scales and plain GPTQ: docs/results-cpu.md.
//
// Arithmetic, the same on every kernel entry and for any thread count. Columns and rows are numbered in their order.
// w[r, j] starts as the weight (rounded to `weights`); s[r, j] = 0. For each row r, for each of its blocks:
//   w[r, j] = fma(-spreadG[r', r], w[r', j] - q[r', j], w[r, j]) for r' < r in order;  x_j = w[r, j] - s[r, j]
//   q, residuals = search_block(x);  s[r, j] = fma(residual_k, spreadH[k, j], s[r, j]) for all later j, k in order
#pragma once

#include "kernels/quantize.h"
#include "quant/feedback.h"
#include "quant/weight_solver.h"

namespace nibble {

// mix and token_weights are about how h was accumulated and not read here.
// weight: [N, K], finite, K a multiple of 16; `weights`: the dtype that codes are made from, as WeightSpec::weights. h:
// [K, K]; g: [N, N] or null. out: nvfp4, its tensor_scale set by the caller (shared by a fusion group); one that
// nibble_best_holds() refuses is an error. Matrices that are not positive definite after damping count by their
// diagonal, without feedback; the result says so.
Result<SolveGaps> nibble_best(const MatrixView& weight, DType weights, const Gram& h, const Gram* g,
                              const NibbleBestOptions& options, const SolverKernels& kernels, ThreadPool& pool,
                              const QuantSpan& out);

// Whether the reciprocals of block scales are finite under this tensor scale.
inline bool nibble_best_holds(float tensor_scale) { return tensor_scale > 1e-30f; }

}  // namespace nibble
