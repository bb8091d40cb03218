// Losses of a model's logits on a GPU, and their gradients: for labels, for a teacher's distribution, and for labels
// under the distribution that rollouts sample from.
//
// Pointers are device pointers, 16-byte aligned. Rows without a stride are adjacent. Widths are multiples of 8.
// Functions queue work and return at once; they neither allocate nor wait.
#pragma once

#include "kernels/loss_args.h"
#include "kernels/sampling_row.h"
#include "tensor/device.h"

namespace nibble::cuda {

Status label_loss(const LabelLoss& l, const Stream& stream);
Status teacher_loss(const TeacherLoss& l, const Stream& stream);

// Like label_loss() with p = `drawn` of the rounded logits: the log-probabilities of kernels/sampling_cuda.h, bit for
// bit. The gradient treats the filters' choice as constant and divides by the temperature. A filtered label has
// log-probability -inf; a row with a logit that is not finite has NaN.
Status drawn_label_loss(const LabelLoss& l, const Drawn& drawn, const Stream& stream);

}  // namespace nibble::cuda
