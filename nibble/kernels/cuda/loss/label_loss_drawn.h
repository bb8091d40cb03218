// Kernels called by label_loss_drawn.cpp, which checks the arguments.
#pragma once

#include "kernels/loss_args.h"
#include "kernels/sampling_row.h"

#include <cuda_runtime_api.h>

namespace nibble::cuda {

struct DrawnLabels {
    LabelLoss labels;
    Drawn drawn;
};
cudaError_t prepare_label_loss_drawn();
cudaError_t launch_label_loss_drawn(const DrawnLabels& l, cudaStream_t stream);

}  // namespace nibble::cuda
