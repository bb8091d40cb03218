// What calibration and search read off a forward pass on a GPU: ranges of activations, second moments, divergences.
//
//   ranges   the largest |x| and, where asked for, counts by the BF16 code of |x|: maxima and integers, so no order
//   shows moments  S += X^T X in FP64: rows are cut into chunks of 2048 from the first row of every call; in a chunk an
//   entry
//            is one FP32 chain of tensor-core steps over 16 rows, ascending (product_cuda.h), then it is added to S
//   local    the 16 x 16 blocks on its diagonal: chunks of 512 rows, an FP32 chain of fused multiply-adds in row order
//
// Pointers are device pointers, 16-byte aligned. All functions queue work and return at once; they neither allocate nor
// wait, and start when everything before them is done.
#pragma once

#include "kernels/attention_cuda.h"
#include "kernels/device_ranges.h"
#include "tensor/device.h"

namespace nibble::cuda {

struct ObservedRows {
    const std::byte* x = nullptr;  // [rows, cols] BF16, adjacent
    int64_t rows = 0, cols = 0;    // cols: a multiple of 8
    // Rows sorted by expert: those of expert e in [begin[e], begin[e + 1]), on the device. null: one expert has all.
    int experts = 1;
    const int32_t* begin = nullptr;
};
// sums [experts], counts [experts][range_buckets] or null: added to.
Status observe_ranges(const ObservedRows& rows, RangeSums* sums, uint64_t* counts, const Stream& stream);

// The inverse of append_kv for a BF16 cache: k [tokens, kv_heads, k_dim], v [tokens, kv_heads, v_dim] of the slots.
Status read_kv(const KvCache& cache, const int64_t* slots, int64_t tokens, std::byte* k, std::byte* v,
               const Stream& stream);

// x [rows, n] BF16, n a multiple of 8; sums [n, n]: added to. prepare_products() was called.
inline constexpr int64_t moment_chunk = 2048;
int64_t moments_scratch_bytes(int64_t n);
Status add_moments(const std::byte* x, int64_t rows, int64_t n, double* sums, std::byte* scratch, const Stream& stream);
// n: a multiple of 16; sums [n / 16, 16, 16]: added to.
Status add_local_moments(const std::byte* x, int64_t rows, int64_t n, double* sums, const Stream& stream);

// out[r] = KL(softmax(p[r]) || softmax(q[r])) in nats, in doubles. p, q [rows, vocab] FP32.
Status divergences(const float* p, const float* q, int64_t rows, int64_t vocab, double* out, const Stream& stream);

}  // namespace nibble::cuda
