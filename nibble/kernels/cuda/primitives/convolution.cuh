// The causal convolution of mixers with recurrent states, in the order of kernels/ssm.h. A sequence's state begins with
// the last taps - 1 rows of inputs, oldest first.
#pragma once

#include "kernels/cuda/primitives/elementwise.cuh"
#include "kernels/state_segment.h"

namespace nibble::cuda {

struct Convolution {
    const float* projected;  // outputs of a product, `stride` floats from row to row; rounded to BF16 when read
    int64_t stride;
    const float *weight, *bias;  // [taps][channels]; [channels] or null
    int channels, taps;

    // Returns channel c, column `column` of projected, at token t of a segment; t >= -(taps - 1).
    __device__ float input(const StateSegment& s, int64_t t, int c, int column) const {
        if (t >= 0) return rounded(projected[(s.row + t) * stride + column]);
        return s.state ? s.state[(taps - 1 + t) * channels + c] : 0.0f;
    }
    __device__ float sum(const StateSegment& s, int64_t t, int c, int column) const {
        float acc = bias ? bias[c] : 0.0f;
        for (int j = 0; j < taps; ++j)
            acc = fmaf(weight[j * channels + c], input(s, t - (taps - 1) + j, c, column), acc);
        return acc;
    }
    // Replaces the stored rows of channel c by the segment's last ones. All reads of them must be complete.
    __device__ void keep(const StateSegment& s, int c, int column) const {
        if (!s.state) return;
        for (int j = 0; j < taps - 1; ++j)  // ascending: each entry is read before it is overwritten
            s.state[int64_t{j} * channels + c] = input(s, s.rows - (taps - 1) + j, c, column);
    }
};

}  // namespace nibble::cuda
