// The end of a training step on a GPU: sums of gradients, clipping, and updates by AdamW (states in FP32 or BF16) or
// Muon. The formulas, their order and the random bits are those of train/optimizer.h. An update changes nothing if
// *clip is NaN.
//
// Pointers are device pointers, 16-byte aligned. Rows without a stride are adjacent. Widths are multiples of 8.
// Functions queue work and return at once; they neither allocate nor wait.
#pragma once

#include "kernels/optimizer_args.h"
#include "tensor/device.h"

namespace nibble::cuda {

// to += from
Status add_gradient(float* to, const float* from, int64_t count, const Stream& stream);
// to = a + b; `to` may be one of them.
Status sum_gradients(float* to, const float* a, const float* b, int64_t count, const Stream& stream);
// Sums of squares in FP64, in an order that depends on the number of elements only: first each of `square_sections`
// sections of section_elements(count) adjacent elements (some may be on another GPU), then the sum over sections.
inline constexpr int square_sections = 1056;
constexpr int64_t section_elements(int64_t count) {
    return ((count + square_sections - 1) / square_sections + 63) / 64 * 64;
}
// parts[i] = sum of squares of section first + i. x: the address of element 0; only the given sections are read.
Status section_squares(const float* x, int64_t count, int first, int sections, double* parts, const Stream& stream);
// *sum = parts[0] + ... + parts[count - 1].
Status sum_sections(const double* parts, int count, double* sum, const Stream& stream);
// *clip = the clipping factor for a gradient with this sum of squares; NaN if the sum is not finite.
Status clip_factor(const double* squares, double limit, float* clip, const Stream& stream);
Status adamw_update(const AdamW& a, const Stream& stream);

Status adamw_update(const NarrowAdamW& a, const Stream& stream);
int64_t muon_workspace(int64_t rows, int64_t cols);
Status muon_update(const Muon& u, const Stream& stream);

}  // namespace nibble::cuda
