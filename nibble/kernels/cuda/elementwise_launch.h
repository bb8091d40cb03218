// What kernels/cuda/elementwise.cpp calls. Arguments are checked before they come here.
#pragma once

#include "kernels/kv_tile.h"

#include <cuda_runtime_api.h>

namespace nibble::cuda {

struct EmbedArgs {
    const uint4* table = nullptr;
    const int32_t* tokens = nullptr;
    uint4* h = nullptr;
    int64_t count = 0, width = 0;
    bool overlap = false;
};
cudaError_t launch_embed(const EmbedArgs& args, cudaStream_t stream);

struct AddNormArgs {
    uint16_t* h = nullptr;
    const float* update = nullptr;
    const float* weight = nullptr;
    uint8_t* out = nullptr;
    int64_t tokens = 0;
    int width = 0, tile_tokens = 0;
    float eps = 0;
    bool overlap = false;
};
inline constexpr int most_norm_width = 32768;
cudaError_t launch_add_norm(const AddNormArgs& args, cudaStream_t stream);

struct ActivateArgs {
    const float* in = nullptr;
    uint8_t* out = nullptr;
    int64_t tokens = 0;
    int width = 0, tile_tokens = 0;
    int activation = 0;  // nibble::Activation
    bool gated = false, overlap = false;
};
cudaError_t launch_activate(const ActivateArgs& args, cudaStream_t stream);

struct RopeArgs {
    const float* qkv = nullptr;
    const int32_t* positions = nullptr;
    const int64_t* slots = nullptr;
    const float* cos = nullptr;
    const float* sin = nullptr;
    uint16_t* q = nullptr;
    uint8_t* pages = nullptr;
    const float* k_scales = nullptr;
    const float* v_scales = nullptr;
    int64_t tokens = 0, page_bytes = 0;
    int q_heads = 0, kv_heads = 0, page_tokens = 0;
    bool overlap = false;
};
cudaError_t launch_rope(const RopeArgs& args, KvType type, cudaStream_t stream);

struct ArgmaxArgs {
    const float* logits = nullptr;
    int32_t* index = nullptr;
    int64_t tokens = 0, width = 0;
    bool overlap = false;
};
cudaError_t launch_argmax(const ArgmaxArgs& args, cudaStream_t stream);

}  // namespace nibble::cuda
