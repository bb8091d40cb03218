// The twin of kernels/cuda/attention/cache_rows.cpp in a build without CUDA.
#include "kernels/cache_rows_cuda.h"

namespace nibble::cuda {

namespace {

Error absent() { return fail("this build has no CUDA (configure with -DNIBBLE_CUDA=ON); use --device cpu"); }

}  // namespace

Status round_cache(const RoundCache&, const Stream&) { return absent(); }
Status clear_clipped(const ClearClipped&, const Stream&) { return absent(); }
Status see_cache(const SeeCache&, const Stream&) { return absent(); }

}  // namespace nibble::cuda
