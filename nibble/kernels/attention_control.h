// For negative controls: attention whose online softmax takes 32 positions in a step instead of the 64 that
// kernels/attention.h defines. The same values but for rounding: a lab that compares bits must see it.
#pragma once

#include "kernels/attention.h"

namespace nibble {

const AttentionKernels& attention_in_half_splits();

}  // namespace nibble
