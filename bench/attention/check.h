// Paged decode attention against double precision, and against itself in other batches.
#pragma once

#include "base/error.h"
#include "kernels/attention_cuda.h"
#include "tensor/device.h"

#include <string>
#include <vector>

namespace nibble::bench {

struct AttentionCheck {
    std::string name;
    int64_t compared = 0, wrong = 0;  // output words
    double worst = 0;  // ||out - reference|| / ||reference|| of the worst sequence, where that is checked
    std::string first;
};

// Probabilities of 8 (BF16) or 11 bits, outputs of 8, scores in FP32.
inline constexpr double attention_bound = 4e-3;

Result<std::vector<AttentionCheck>> check_attention(const Stream& stream, const DeviceInfo& device, DeviceArena& arena,
                                                    uint64_t seed, bool small);

}  // namespace nibble::bench
