// Gradients of the scan of kernels/ssm.h over a whole text that starts from a zero state. Plain C++ on any CPU.
#pragma once

#include "kernels/ssm.h"

namespace nibble {

// Shapes and strides as in SsmScan; all are written.
struct SsmGradients {
    const float* dy;        // [tokens][heads * head_dim]
    float *dx, *db, *dc;    // rows `stride` apart
    float *d_decay, *d_dt;  // [tokens][heads]; of dt as the factor of x alone
    float* dd;              // [heads]
};
// States are computed again from one kept every 32 tokens: 33 states of a head and tokens / 32 live at a time.
void ssm_scan_backward(const SsmScan& scan, const SsmGradients& gradients, ThreadPool& pool);

}  // namespace nibble
