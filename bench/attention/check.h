// Paged attention against double precision, and against itself in other batches and chunks.
#pragma once

#include "bench/kit.h"
#include "kernels/attention_cuda.h"

namespace nibble::bench {

// Probabilities of 8 (BF16) or 11 bits, outputs of 8, scores in FP32.
inline constexpr double attention_bound = 4e-3;

// tiny: a few launches of every kernel, as many as racecheck goes through in a minute.
enum class AttentionChecks : uint8_t { all, small, tiny };

Result<std::vector<Check>> check_attention(const Stream& stream, const DeviceInfo& device, DeviceArena& arena,
                                           uint64_t seed, AttentionChecks checks);

}  // namespace nibble::bench
