// Gradients of the scan in kernels/ssm.h over a whole text that starts from a zero state. Plain C++ for any CPU.
#pragma once

#include "kernels/ssm.h"

namespace nibble {

// Shapes and strides as in SsmScan. All arrays are written.
struct SsmGradients {
    const float* dy;        // [tokens][heads * head_dim]
    float *dx, *db, *dc;    // rows are `stride` apart
    float *d_decay, *d_dt;  // [tokens][heads]; d_dt only for dt as the factor of x
    float* dd;              // [heads]
};
// Recomputes states from checkpoints every 32 tokens; keeps 33 states of a head plus tokens / 32 at a time.
void ssm_scan_backward(const SsmScan& scan, const SsmGradients& gradients, ThreadPool& pool);

}  // namespace nibble
