// Kernels called by kernels/cuda/moe/moe_backward.cpp, which checks the arguments.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace nibble::cuda {

struct ExpertsBackArgs {
    int experts = 0;
    int64_t slots = 0, rows = 0, cols = 0;
    const int32_t* begin = nullptr;
    const std::byte* dy = nullptr;
    const std::byte* other = nullptr;  // w or x
    void* out = nullptr;
};
cudaError_t prepare_experts_back();
cudaError_t launch_experts_input_gradient(const ExpertsBackArgs& args, cudaStream_t stream);
cudaError_t launch_experts_weight_gradient(const ExpertsBackArgs& args, cudaStream_t stream);

struct ExpertsOperandsArgs {
    int64_t experts = 0, rows = 0, cols = 0;
    int64_t expert_bytes = 0;  // bytes between operands
    const std::byte* w = nullptr;
    std::byte* tiles = nullptr;
};
cudaError_t launch_experts_operands(const ExpertsOperandsArgs& args, cudaStream_t stream);

struct ExpertsActivateArgs {
    int activation = 0;  // nibble::Activation
    bool gated = true;
    int64_t slots = 0, width = 0;
    const int32_t* places = nullptr;
    const float* weights = nullptr;
    const std::byte* in = nullptr;
    const std::byte* d_mid = nullptr;
    std::byte* d_in = nullptr;
    std::byte* mid = nullptr;
    float* d_weights = nullptr;
    bool plain_mid = false;
};
cudaError_t launch_experts_activate_backward(const ExpertsActivateArgs& args, cudaStream_t stream);
cudaError_t launch_weigh_slots(int64_t slots, int64_t width, const int32_t* places, const float* weights,
                               std::byte* rows, cudaStream_t stream);

struct RouteBackwardArgs {
    int count = 0, top_k = 0;
    bool sigmoid = false, round = false, normalize = true;
    float scaling = 1, smallest_sum = 1e-20f;
    int64_t tokens = 0;
    const float* logits = nullptr;
    const int32_t* experts = nullptr;
    const float* d_weights = nullptr;
    uint16_t* d_logits = nullptr;
};
cudaError_t launch_route_backward(const RouteBackwardArgs& args, cudaStream_t stream);

struct SumSlotsArgs {
    int64_t tokens = 0, width = 0;
    int top_k = 0;
    const int32_t* places = nullptr;
    const std::byte* rows = nullptr;
    const std::byte* more[3] = {nullptr, nullptr, nullptr};
    std::byte* out = nullptr;
};
cudaError_t launch_sum_slots(const SumSlotsArgs& args, cudaStream_t stream);

}  // namespace nibble::cuda
