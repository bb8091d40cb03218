// The W4A16 products against double precision, against themselves at other m, and their layout against its inverse.
#pragma once

#include "bench/kit.h"
#include "kernels/matmul_cuda.h"

#include <vector>

namespace nibble::bench {

// A product may be off by this much of the sum of the magnitudes of its terms.
inline constexpr double matmul_bound = 4e-6;

// Every shape of thread block that is compiled, with one part.
std::vector<cuda::MatmulTiling> matmul_tilings();

// Error only when the device fails; what differs is a result.
Result<std::vector<Check>> check_matmul(const Stream& stream, const DeviceInfo& device, DeviceArena& arena,
                                        uint64_t seed, bool small);

}  // namespace nibble::bench
