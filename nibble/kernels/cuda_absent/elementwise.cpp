// The twin of kernels/cuda/elementwise/elementwise.cpp in a build without CUDA.
#include "kernels/elementwise_cuda.h"

namespace nibble::cuda {

namespace {

Error absent() { return fail("this build has no CUDA (configure with -DNIBBLE_CUDA=ON); use --device cpu"); }

}  // namespace

Status embed(const std::byte*, const int32_t*, int64_t, int64_t, std::byte*, bool, const Stream&) { return absent(); }
Status add_norm(const AddNorm&, bool, const Stream&) { return absent(); }
Status norm_rows(const NormRows&, bool, const Stream&) { return absent(); }
Status activate(Activation, bool, const std::byte*, int64_t, int64_t, const RowsOut&, bool, const Stream&, float*) {
    return absent();
}
Status activate(Activation, bool, const float*, int64_t, int64_t, int64_t, const RowsOut&, bool, const Stream&, bool) {
    return absent();
}
Status to_rows(const float*, int64_t, int64_t, int64_t, const RowsOut&, bool, const Stream&) { return absent(); }
Status add_rows(float*, const float*, int64_t, bool, const Stream&) { return absent(); }
Status round_rows(float*, int64_t, bool, const Stream&) { return absent(); }
Status rope_append(const RopeAppend&, const KvCache&, bool, const Stream&) { return absent(); }
Status latent_append(const LatentAppend&, const KvCache&, bool, const Stream&) { return absent(); }
Status argmax(const float*, int64_t, int64_t, int32_t*, bool, const Stream&) { return absent(); }

}  // namespace nibble::cuda
