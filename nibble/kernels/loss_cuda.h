// Losses at the head of a model on a GPU, and their gradients by the logits: of labels, of a teacher's distribution,
// and of labels under the distribution that rollouts draw from.
//
// Pointers are device pointers, 16-byte aligned; rows are adjacent where no stride is given; widths are multiples of 8.
// Functions queue work and return at once; they neither allocate nor wait.
#pragma once

#include "kernels/loss_args.h"
#include "kernels/sampling_row.h"
#include "tensor/device.h"

namespace nibble::cuda {

Status label_loss(const LabelLoss& l, const Stream& stream);
Status teacher_loss(const TeacherLoss& l, const Stream& stream);

// As label_loss(), p being `drawn` of the rounded logits: the log-probabilities of kernels/sampling_cuda.h, to the bit.
// The gradient takes the filters' choice as it is, and divides slopes by the temperature. A label that is left out has
// -inf; a row with a logit that is not finite has NaN.
Status drawn_label_loss(const LabelLoss& l, const Drawn& drawn, const Stream& stream);

}  // namespace nibble::cuda
