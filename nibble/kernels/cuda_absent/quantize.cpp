// The twin of kernels/cuda/ in a build without CUDA. No Stream can exist there, so these are never reached with a live
// one.
#include "kernels/quantize_cuda.h"

namespace nibble::cuda {

namespace {

Error absent() { return fail("this build has no CUDA (configure with -DNIBBLE_CUDA=ON); use --device cpu"); }

}  // namespace

Status reset_scan(DeviceScan*, const Stream&) { return absent(); }
Status scan(const MatrixView&, int64_t, DeviceScan*, const Stream&) { return absent(); }
Status quantize(const MatrixView&, const WeightSpec&, const DeviceAmax&, const QuantSpan&, const QuantizeOutputs&,
                const Stream&) {
    return absent();
}
int64_t tensor_losses_scratch(int64_t, int64_t) { return 0; }
Status tensor_losses(const MatrixView&, const WeightSpec&, const float*, std::span<const float>, double*, double*,
                     const Stream&) {
    return absent();
}
Status measure(const MatrixView&, const QuantView&, DeviceStats*, RowSums*, const Stream&) { return absent(); }
Status quantize_activations(const MatrixView&, Activations, const float*, const ActivationOutput&, const Stream&) {
    return absent();
}
Status quantize_training(const MatrixView&, const float*, const TrainingRounding&, const ActivationOutput&,
                         const Stream&) {
    return absent();
}
Status decode(const QuantView&, const float*, DType, std::byte*, const Stream&) { return absent(); }
Status swizzle(const uint8_t*, int64_t, int64_t, uint8_t*, const Stream&) { return absent(); }

}  // namespace nibble::cuda
