// What travels to a GPU that samples. Plain data.
#pragma once

#include "kernels/sampling.h"

#include <cmath>

namespace nibble::cuda {

inline constexpr int most_candidates = 4096;  // of a bin, see sampling_cuda.h

// SampleRow::mask of a row without one, and of a row that is left to a later call.
inline constexpr int32_t no_mask = -1, deferred_row = -2;

// Words of a row's mask, and what is left of 16 bytes.
NIBBLE_HD inline constexpr int64_t mask_pitch(int64_t width) { return (width + 127) / 128 * 4; }

// The distribution that tokens are drawn from, without penalties: of logits divided by the temperature, of those that
// the filters keep (kernels/token_filter.h, restrict()).
struct Drawn {
    float temperature = 1, top_p = 1, lowest = -INFINITY;  // lowest: log(min_p)
    int32_t top_k = 0;

    NIBBLE_HD bool filters() const { return top_k > 0 || top_p < 1 || lowest > -INFINITY; }
    NIBBLE_HD bool raw() const { return temperature == 1 && !filters(); }
};
Drawn drawn_from(const SamplingParams& params);  // of temperature 0 the raw one

// A TokenRequest in device memory.
struct SampleRow {
    float temperature = 0, top_p = 1, lowest = 0;  // lowest: log(min_p), or -infinity
    float repetition = 1, presence = 0, frequency = 0;
    int32_t top_k = 0;
    int32_t first_seen = 0, seen = 0;  // in Sampling::seen
    int32_t mask = no_mask;            // a row of Sampling::masks
    int32_t scored = 0;                // the log-probability is that of Drawn
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
