// Gradients of the gated delta rule (kernels/delta_rule.h) over a whole text that starts from a zero state. Plain C++
// for any CPU.
#pragma once

#include "kernels/delta_rule.h"

namespace nibble {

// Gradients of one head. Rows have the strides of the DeltaHead.
struct DeltaGradients {
    const float* dy;               // gradient of y
    float *dq, *dk;                // added to: heads of values share them
    float *dv, *d_decay, *d_beta;  // written
};
// Reads no state and no y of `head`. Recomputes states from checkpoints every 32 tokens; keeps 33 states plus one per
// 32 tokens.
void delta_rule_backward(const DeltaHead& head, const DeltaGradients& gradients);

}  // namespace nibble
