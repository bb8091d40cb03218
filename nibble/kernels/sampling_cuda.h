// Tokens chosen where the logits lie: kernels/sampling.h on a GPU. The token is that of serve/sampler.h given the same
// logits; log-probabilities are those of ElementwiseKernels::log_softmax (but for one logarithm in FP64, which may
// differ from libm's in its last place: that of a float, once in 10^8).
//
// A cluster of eight thread blocks per row. Tokens are counted in bins of 1/32 below the largest logit; of the few bins
// in which top-k, top-p and the draw end, the tokens are sorted. A bin of more than `most_candidates` tokens is left to
// the host (id -1). A log-probability of the distribution that is drawn from is computed by a thread block for each
// row, behind the draw, whatever the row holds. All functions queue work and return at once.
#pragma once

#include "kernels/sampling_row.h"
#include "tensor/device.h"

namespace nibble::cuda {

// Without the request's mask: SampleRow::mask is the caller's to set.
SampleRow sample_row(const TokenRequest& request, int64_t first_seen);

struct Sampling {
    int64_t rows = 0, width = 0;  // width: up to 2^19
    // [rows, width]; become bf16(logits) where `round`.
    float* logits = nullptr;
    bool round = true;
    const SampleRow* requests = nullptr;  // [rows]; deferred rows keep their logits as they are and get id -1
    SeenSlot* seen = nullptr;
    bool scored = false;  // a request has SampleRow::scored; needs `round`
    // [rows], memory of the device or page-locked memory of the host. id -2: the row holds a NaN or an infinity.
    ChosenToken* out = nullptr;
    // Choices from some rows alone: requests[i] is for row places[i] of logits and of out. null: for row i, and no mask
    // is read.
    const int32_t* places = nullptr;
    const uint32_t* masks = nullptr;  // [.., mask_pitch(width)]; a mask that allows nothing gives id -1
    // Words that go the same way: a copy of their own would cost a step some microseconds.
    const int32_t* words = nullptr;
    int32_t* words_out = nullptr;
    int64_t word_count = 0;
};
Status sample(const Sampling& s, bool overlap, const Stream& stream);

// tokens[to] = the token of row `row` of `from`, or 0 where that row has none: what a step before has chosen and the
// host does not know yet. `list` lies in device memory; `from` as Sampling::out.
Status carry_tokens(const CarriedToken* list, int64_t count, const ChosenToken* from, int32_t* tokens,
                    const Stream& stream);

}  // namespace nibble::cuda
