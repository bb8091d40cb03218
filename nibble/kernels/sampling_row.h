// Requests in the memory of a sampling GPU. Plain data.
#pragma once

#include "kernels/sampling.h"

#include <cmath>

namespace nibble::cuda {

inline constexpr int most_candidates = 4096;  // per bin, see sampling_cuda.h

// Values of SampleRow::mask: the row has no mask; the row is left to a later call.
inline constexpr int32_t no_mask = -1, deferred_row = -2;

// Words per row of masks: whole multiples of 16 bytes.
NIBBLE_HD inline constexpr int64_t mask_pitch(int64_t width) { return (width + 127) / 128 * 4; }

// The distribution that tokens are drawn from, without penalties: the logits divided by the temperature, of tokens that
// pass the filters (kernels/token_filter.h, restrict()).
struct Drawn {
    float temperature = 1, top_p = 1, lowest = -INFINITY;  // lowest: log(min_p)
    int32_t top_k = 0;

    NIBBLE_HD bool filters() const { return top_k > 0 || top_p < 1 || lowest > -INFINITY; }
    NIBBLE_HD bool raw() const { return temperature == 1 && !filters(); }
};
Drawn drawn_from(const SamplingParams& params);  // temperature 0: the unfiltered distribution

// A TokenRequest in device memory.
struct SampleRow {
    float temperature = 0, top_p = 1, lowest = 0;  // lowest: log(min_p), or -infinity
    float repetition = 1, presence = 0, frequency = 0;
    int32_t top_k = 0;
    int32_t first_seen = 0, seen = 0;  // range in Sampling::seen
    int32_t mask = no_mask;            // row of Sampling::masks
    int32_t scored = 0;                // true if the log-probability is that of Drawn
    uint64_t seed = 0, sequence = 0;
    int64_t position = 0;
};
struct CarriedToken {  // see carry_tokens()
    int32_t row = 0, to = 0;
};
struct SeenSlot {
    SeenToken token;
    float saved = 0;  // used by the kernel: the logit without penalties
};

}  // namespace nibble::cuda
