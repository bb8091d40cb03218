// Sampling of kernels/sampling.h on a GPU, without copying logits to the host. The token equals that of
// engine/sampler.h for the same logits. Log-probabilities equal ElementwiseKernels::log_softmax except for one FP64
// logarithm, which may differ from libm's in its last place (once in 10^8 results after rounding to float).
//
// A cluster of eight thread blocks processes a row. Tokens are counted in bins of 1/32 below the largest logit; only
// tokens of the few bins in which top-k, top-p and the draw end are sorted. A bin of more than `most_candidates` tokens
// is left to the host (id -1). The log-probability under the sampled distribution is computed by one thread block per
// row after the draw, for any row. Functions queue work and return at once.
#pragma once

#include "kernels/sampling_row.h"
#include "tensor/device.h"

namespace nibble::cuda {

// Converts a request without its mask; the caller sets SampleRow::mask.
SampleRow sample_row(const TokenRequest& request, int64_t first_seen);

struct Sampling {
    int64_t rows = 0, width = 0;  // width: at most 2^19
    // [rows, width]. Become bf16(logits) if `round`.
    float* logits = nullptr;
    bool round = true;
    const SampleRow* requests = nullptr;  // [rows]; deferred rows keep their logits and get id -1
    SeenSlot* seen = nullptr;
    bool scored = false;  // a request has SampleRow::scored set; needs `round`
    // [rows], device memory or page-locked host memory. id -2: the row has a NaN or an infinity.
    ChosenToken* out = nullptr;
    // Chooses from some rows only: requests[i] applies to row places[i] of logits and out. null: to row i, and masks
    // are not read.
    const int32_t* places = nullptr;
    const uint32_t* masks = nullptr;  // [.., mask_pitch(width)]; a mask that allows no token gives id -1
    // Additional words that are copied along: a separate copy would cost a step some microseconds.
    const int32_t* words = nullptr;
    int32_t* words_out = nullptr;
    int64_t word_count = 0;
};
Status sample(const Sampling& s, bool overlap, const Stream& stream);

// tokens[to] = the token of row `row` of `from`, or 0 if the row has none: a token that the previous step chose and the
// host does not know yet. `list` is in device memory; `from` is a Sampling::out.
Status carry_tokens(const CarriedToken* list, int64_t count, const ChosenToken* from, int32_t* tokens,
                    const Stream& stream);

}  // namespace nibble::cuda
