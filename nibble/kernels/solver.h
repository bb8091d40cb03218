// Inner loops of weight solvers (GPTQ, nibble_best), their statistics and factorizations, on a CPU.
//
// Every entry computes the same bits: each sum is one chain of fused multiply-adds in ascending k, so results do not
// depend on cache blocks, register tiles or threads. Functions run on the calling thread.
#pragma once

#include "base/error.h"
#include "kernels/solver_args.h"

#include <span>
#include <string_view>

namespace nibble {

struct SolverKernels {
    std::string_view name;  // "avx512", "avx2", "ref"
    bool (*supported)();    // by this CPU
    // c = fma(+-a, b, c), k ascending. A and B may be the same matrix; C must not overlap them.
    void (*rank_update)(const RankUpdate<float>& update);
    void (*rank_update_f64)(const RankUpdate<double>& update);
    // Rounds the block x [16] to scale * E2M1 for 16 candidate scales at once and returns the candidate of least cost,
    // the first of equal ones. Per candidate, for k = 0..15 in order:
    //   v = clamp(x_k * inverse, -6, 6);  n = v rounded to E2M1, ties to even;  r = fma(-n, scale, x_k);
    //   e = r * weight_k;  cost = fma(e, e, cost);  x_j = fma(-r, row[k][j], x_j) for j > k
    // scale, inverse: [16], positive and finite; inverse is 1 / scale.
    void (*search_block)(const float* x, const BlockFactor& factor, const float* scale, const float* inverse,
                         BlockChoice& choice);
    // One sweep of coordinate descent, k = 0 .. n - 1 in order. Returns the number of changed codes:
    //   v = clamp(fma((y_k + other_k) * inverse_diagonal_k, inverse_scale_k, multiple_k), -6, 6)
    //   m = v rounded to E2M1, ties to even; if m != multiple_k:
    //     d = (multiple_k - m) * scale_k;  multiple_k = m;  y_j = fma(d, h[k][j], y_j) for all j
    int64_t (*descend_row)(const RowDescent& row);
    // loss[c] = d^T H d for the 16 candidate scales c, where d_k = x_k - fake quantized x_k (nvfp4_fake_value of
    // formats/nvfp4.h); h: [16, 16]. y = fma(h[i][j], d_j, y), j ascending; loss = fma(d_i, y, loss), i ascending.
    void (*block_losses)(const float* x, const float* h, const float* scale, float* loss);
};

// Fastest first, `ref` last.
std::span<const SolverKernels> solver_kernels();
// Returns the first supported entry, or the one named by `force`. Errors: an unknown name, an entry that this CPU does
// not support; the message lists the choices.
Result<const SolverKernels*> select_solver_kernels(std::string_view force = {});

}  // namespace nibble
