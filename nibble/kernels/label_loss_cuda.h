// label_loss() of kernels/train_cuda.h for the distribution that rollouts sample from instead of the softmax of the
// logits. kernels/cuda_absent/ implements this header in a build without CUDA.
#pragma once

#include "kernels/sampling_row.h"
#include "kernels/train_cuda.h"

namespace nibble::cuda {

Status prepare_drawn_labels(const DeviceInfo& device);

// Like label_loss() with p = `drawn` of the rounded logits: the log-probabilities of kernels/sampling_cuda.h, bit for
// bit. The gradient treats the filters' choice as constant and divides by the temperature. A filtered label has
// log-probability -inf; a row with a logit that is not finite has NaN.
Status drawn_label_loss(const LabelLoss& l, const Drawn& drawn, const Stream& stream);

}  // namespace nibble::cuda
