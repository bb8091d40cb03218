// Rounding and statistics of K, V and Q for an FP8 KV cache (kernels/attention_cuda.h): the values that attention
// reads, the elements that the scales clip, and maxima. Rows are BF16 and adjacent; widths are multiples of 8.
// Functions queue work and return at once.
#pragma once

#include "kernels/cache_rows_args.h"
#include "tensor/device.h"

namespace nibble::cuda {

Status round_cache(const RoundCache& r, const Stream& stream);
Status clear_clipped(const ClearClipped& c, const Stream& stream);
Status see_cache(const SeeCache& s, const Stream& stream);

}  // namespace nibble::cuda
