// The gated delta rule (Yang et al. 2024, "Gated Delta Networks", arXiv 2412.06464), on a CPU. A head has a state S
// [key_dim, value_dim], FP32; a token with key k, query q, value v, decay d and strength beta does
//   S = d S;  u = beta (v - S^T k);  S = S + k u^T;  y = S^T q
// With decay_by_channel (Kimi delta attention, arXiv 2510.26692), d has one number per row of S.
//
// The rule runs token by token, also in prefill: prefill, decode, training and any cut of a text give the same bits.
// Columns of S are independent, so a run of 16 columns stays in L1 for all tokens of a call.
//
// Order of sums, for every column p < value_dim and i < key_dim ascending:
//   s[i] = d[i] * S[i][p], rounded;  a[i % 4] = fma(k[i], s[i], a[i % 4]) from +0
//   u = beta * (v[p] - ((a[0] + a[1]) + (a[2] + a[3])))
//   S[i][p] = fma(k[i], u, s[i]);  b[i % 4] = fma(q[i], S[i][p], b[i % 4]) from +0
//   y[p] = (b[0] + b[1]) + (b[2] + b[3])
// One column is one lane, so `ref`, AVX2 and AVX-512 give the same bits.
#pragma once

#include "base/error.h"
#include "base/thread_pool.h"
#include "kernels/delta_rule_rows.h"

#include <cstdint>
#include <span>
#include <string_view>

namespace nibble {

struct DeltaKernels {
    std::string_view name;  // "avx512", "avx2", "ref"
    bool (*supported)();
    void (*rule)(const DeltaHead& head);
};

std::span<const DeltaKernels> delta_kernels();
// Returns the first supported entry, or the one named by `force`.
Result<const DeltaKernels*> select_delta_kernels(std::string_view force = {});

// The floats of one head's state; all zero at the start of a sequence.
int64_t delta_state_elements(int key_dim, int value_dim);
// Runs the heads, of any number of sequences, on the threads of the pool.
void delta_rule(const DeltaKernels& kernels, std::span<const DeltaHead> heads, ThreadPool& pool);

}  // namespace nibble
