// label_loss() of kernels/train_cuda.h under another distribution than the softmax of the logits: the one that rollouts
// draw from.
#pragma once

#include "kernels/sampling_row.h"
#include "kernels/train_cuda.h"

namespace nibble::cuda {

Status prepare_drawn_labels(const DeviceInfo& device);

// As label_loss(), p being `drawn` of the rounded logits: the log-probabilities of kernels/sampling_cuda.h, to the bit.
// The gradient takes the filters' choice as it is, and divides slopes by the temperature. A label that is left out has
// -inf; a row with a logit that is not finite has NaN.
Status drawn_label_loss(const LabelLoss& l, const Drawn& drawn, const Stream& stream);

}  // namespace nibble::cuda
