// The twin of kernels/cuda/observe/observe.cpp in a build without CUDA.
#include "kernels/observe_cuda.h"

namespace nibble::cuda {

namespace {

Error absent() { return fail("this build has no CUDA (configure with -DNIBBLE_CUDA=ON); use --device cpu"); }

}  // namespace

Status observe_ranges(const ObservedRows&, RangeSums*, uint64_t*, const Stream&) { return absent(); }
Status read_kv(const KvCache&, const int64_t*, int64_t, std::byte*, std::byte*, const Stream&) { return absent(); }
int64_t moments_scratch_bytes(int64_t) { return 0; }
Status add_moments(const std::byte*, int64_t, int64_t, double*, std::byte*, const Stream&) { return absent(); }
Status add_local_moments(const std::byte*, int64_t, int64_t, double*, const Stream&) { return absent(); }
Status divergences(const float*, const float*, int64_t, int64_t, double*, const Stream&) { return absent(); }

}  // namespace nibble::cuda
