// K, V and Q beside an FP8 KV cache (kernels/attention_cuda.h): what attention reads of them, what their scales clip,
// and how large they were. Rows are BF16, adjacent; widths are multiples of 8. All functions queue work and return at
// once.
#pragma once

#include "kernels/cache_rows_args.h"
#include "tensor/device.h"

namespace nibble::cuda {

Status round_cache(const RoundCache& r, const Stream& stream);
Status clear_clipped(const ClearClipped& c, const Stream& stream);
Status see_cache(const SeeCache& s, const Stream& stream);

}  // namespace nibble::cuda
