// A negative control: attention whose online softmax takes steps of 32 positions instead of the 64 that
// kernels/attention.h defines. Values differ by rounding only; a bit comparison must detect it.
#pragma once

#include "kernels/attention.h"

namespace nibble {

const AttentionKernels& attention_in_half_splits();

}  // namespace nibble
