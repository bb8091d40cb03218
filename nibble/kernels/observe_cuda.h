// Statistics of a forward pass on a GPU for calibration and search: ranges of activations, second moments, divergences.
//
//   ranges   the largest |x| and, if requested, counts by the BF16 code of |x|: maxima and integers, so the order does
//            not matter
//   moments  S += X^T X in FP64: every call splits its rows into chunks of 2048; in a chunk an entry is one FP32 chain
//            of tensor-core steps over 16 rows, ascending (operand_matmul_cuda.h), which is then added to S
//   local    the 16 x 16 blocks on its diagonal: chunks of 512 rows, an FP32 chain of fused multiply-adds in row order
//
// Pointers are device pointers, 16-byte aligned. Functions queue work and return at once; they neither allocate nor
// wait. Kernels start after all previous work.
#pragma once

#include "kernels/attention_cuda.h"
#include "kernels/device_ranges.h"
#include "tensor/device.h"

namespace nibble::cuda {

struct ObservedRows {
    const std::byte* x = nullptr;  // [rows, cols] BF16, adjacent
    int64_t rows = 0, cols = 0;    // cols: a multiple of 8
    // Rows sorted by expert: those of expert e are [begin[e], begin[e + 1]); `begin` is on the device. null: one expert
    // has all rows.
    int experts = 1;
    const int32_t* begin = nullptr;
};
// Adds to sums [experts] and counts [experts][range_buckets] (or null).
Status observe_ranges(const ObservedRows& rows, RangeSums* sums, uint64_t* counts, const Stream& stream);

// The inverse of append_kv() for a BF16 cache: reads k [tokens, kv_heads, k_dim] and v [tokens, kv_heads, v_dim].
Status read_kv(const KvCache& cache, const int64_t* slots, int64_t tokens, std::byte* k, std::byte* v,
               const Stream& stream);

// Adds to sums [n, n]. x [rows, n] BF16, n a multiple of 8. Precondition: prepare_matmul() was called.
inline constexpr int64_t moment_chunk = 2048;
int64_t moments_scratch_bytes(int64_t n);
Status add_moments(const std::byte* x, int64_t rows, int64_t n, double* sums, std::byte* scratch, const Stream& stream);
// Adds to sums [n / 16, 16, 16]. n is a multiple of 16.
Status add_local_moments(const std::byte* x, int64_t rows, int64_t n, double* sums, const Stream& stream);

// out[r] = KL(softmax(p[r]) || softmax(q[r])) in nats, in double. p, q [rows, vocab] FP32.
Status divergences(const float* p, const float* q, int64_t rows, int64_t vocab, double* out, const Stream& stream);

}  // namespace nibble::cuda
