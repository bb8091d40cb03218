// The W4A16 products against double precision, against themselves at other m, and their layout against its inverse.
#pragma once

#include "base/error.h"
#include "kernels/matmul_cuda.h"
#include "tensor/device.h"

#include <string>
#include <vector>

namespace nibble::bench {

struct MatmulCheck {
    std::string name;
    int64_t compared = 0, wrong = 0;  // wrong: words or bytes
    double worst = 0;                 // |error| / sum of |terms|, where that is what is compared
    std::string first;
};

// A product may be off by this much of the sum of the magnitudes of its terms.
inline constexpr double matmul_bound = 4e-6;

// Every shape of thread block that is compiled, with one part.
std::vector<cuda::MatmulTiling> matmul_tilings();

// Error only when the device fails; what differs is a result.
Result<std::vector<MatmulCheck>> check_matmul(const Stream& stream, const DeviceInfo& device, DeviceArena& arena,
                                              uint64_t seed, bool small);

}  // namespace nibble::bench
