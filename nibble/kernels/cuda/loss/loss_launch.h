// The kernels of losses over a vocabulary. The host side checks arguments before it calls these.
#pragma once

#include "kernels/loss_args.h"

#include <cuda_runtime_api.h>

namespace nibble::cuda {

cudaError_t prepare_label_loss();
cudaError_t launch_label_loss(const LabelLoss& l, cudaStream_t stream);
cudaError_t prepare_teacher_loss();
cudaError_t launch_teacher_loss(const TeacherLoss& l, cudaStream_t stream);

}  // namespace nibble::cuda
