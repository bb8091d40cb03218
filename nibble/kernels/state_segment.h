// A piece of a batch for kernels with recurrent states. Plain data only: device code includes it.
#pragma once

#include <cstdint>

namespace nibble::cuda {

// Rows [row, row + rows) are consecutive tokens of one sequence. `state`: its state; null: the text starts from zero
// and its state is not kept.
struct StateSegment {
    int32_t row = 0, rows = 0;
    float* state = nullptr;
    int64_t position = 0;  // position of the first row in its sequence
};

}  // namespace nibble::cuda
