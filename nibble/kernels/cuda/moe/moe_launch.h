// Kernels called by kernels/cuda/moe/moe.cpp, which checks the arguments.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace nibble::cuda {

inline constexpr int most_experts = 1024, most_top_k = 32;
// Limits of launch_route_and_sort: slots (with 384 one thread block takes 40 us) and experts (scores are in shared
// memory).
inline constexpr int most_sorted_here = 64, most_experts_here = 256;

struct RouteArgs {
    const float* logits = nullptr;
    const float* bias = nullptr;
    int32_t* experts = nullptr;
    float* weights = nullptr;
    int64_t tokens = 0;
    int count = 0, top_k = 0, groups = 1, kept_groups = 1;
    float scaling = 1, smallest_sum = 1e-20f;
    bool sigmoid = false, round = false, normalize = true, overlap = false;
    bool sparse_mixer = false;
    float jitter = 0;
    const float* expert_scales = nullptr;
};
cudaError_t launch_route(const RouteArgs& args, cudaStream_t stream);

struct SortArgs {
    const int32_t* experts = nullptr;  // [slots]
    int32_t* begin = nullptr;
    int32_t* rows = nullptr;
    int32_t* places = nullptr;
    int slots = 0, top_k = 0, count = 0;
    bool overlap = false;
};
cudaError_t launch_sort(const SortArgs& args, cudaStream_t stream);

cudaError_t launch_route_and_sort(const RouteArgs& args, const SortArgs& sort, cudaStream_t stream);

struct CombineArgs {
    const float* y = nullptr;
    const float* weights = nullptr;
    const int32_t* places = nullptr;
    const float* shared = nullptr;
    const float* shared_gate = nullptr;
    float* sum = nullptr;
    uint16_t* rows = nullptr;
    int64_t tokens = 0, y_stride = 0;
    int width = 0, top_k = 0;
    bool weighed = true;
    bool overlap = false;
};
cudaError_t launch_combine(const CombineArgs& args, cudaStream_t stream);

struct WeighArgs {
    const std::byte* x = nullptr;
    const float* weights = nullptr;
    const int32_t* places = nullptr;
    std::byte* out = nullptr;
    int64_t tokens = 0;
    int width = 0, top_k = 0;
    bool overlap = false;
};
cudaError_t launch_weigh(const WeighArgs& args, cudaStream_t stream);

}  // namespace nibble::cuda
