// What travels to a GPU that samples. Plain data.
#pragma once

#include "kernels/sampling.h"

namespace nibble::cuda {

inline constexpr int most_candidates = 4096;  // of a bin, see sampling_cuda.h

// A TokenRequest in device memory.
struct SampleRow {
    float temperature = 0, top_p = 1, lowest = 0;  // lowest: log(min_p), or -infinity
    float repetition = 1, presence = 0, frequency = 0;
    int32_t top_k = 0;
    int32_t first_seen = 0, seen = 0;  // in Sampling::seen
    int32_t unused = 0;
    uint64_t seed = 0, sequence = 0;
    int64_t position = 0;
};
struct CarriedToken {  // see carry_tokens()
    int32_t row = 0, to = 0;
};
struct SeenSlot {
    SeenToken token;
    float saved = 0;  // the kernel's: the logit without penalties
};

}  // namespace nibble::cuda
