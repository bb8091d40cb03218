// The twin of kernels/cuda/moe/moe_backward.cpp in a build without CUDA.
#include "kernels/train_moe_cuda.h"

namespace nibble::cuda {

namespace {

Error no_moe_training() { return fail("this build has no CUDA (configure with -DNIBBLE_CUDA=ON); use --device cpu"); }

}  // namespace

Status prepare_training_experts(const DeviceInfo&) { return no_moe_training(); }
Status experts_input_gradient(const ExpertsShape&, const int32_t*, const std::byte*, const std::byte*, std::byte*,
                              const Stream&) {
    return no_moe_training();
}
Status experts_weight_gradient(const ExpertsShape&, const int32_t*, const std::byte*, const std::byte*, float*,
                               const Stream&) {
    return no_moe_training();
}
Status experts_operands(const ExpertsShape&, const std::byte*, std::byte*, const Stream&) { return no_moe_training(); }
Status experts_activate_backward(const ExpertsActivateBackward&, const Stream&) { return no_moe_training(); }
Status weigh_slots(int64_t, int64_t, const int32_t*, const float*, std::byte*, const Stream&) {
    return no_moe_training();
}
Status route_backward(const RouteBackward&, const Stream&) { return no_moe_training(); }
Status sum_slots(const SumSlots&, const Stream&) { return no_moe_training(); }

}  // namespace nibble::cuda
