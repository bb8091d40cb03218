// Kernels called by kernels/cuda/elementwise/elementwise.cpp, which checks the arguments.
#pragma once

#include "kernels/kv_tile.h"

#include <cuda_runtime_api.h>

namespace nibble::cuda {

// Output rows as adjacent E4M3 codes instead of BF16.
struct RowCodes {
    int format = 0;  // nibble::ActivationFormat; 0: BF16
    float input_scale = 1;
    float* scales = nullptr;
};

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
    uint16_t* sum = nullptr;  // may be h
    const float* update = nullptr;
    const uint16_t* update16 = nullptr;  // update in BF16
    const float* post_norm = nullptr;
    const float* weight = nullptr;
    uint8_t* out = nullptr;
    int32_t* nonfinite = nullptr;
    float* amax = nullptr;  // may be null
    int64_t tokens = 0;
    int width = 0, tile_tokens = 0;
    RowCodes codes;
    float eps = 0;
    bool overlap = false;
};
inline constexpr int most_norm_width = 32768;
cudaError_t launch_add_norm(const AddNormArgs& args, cudaStream_t stream);

struct NormRowsArgs {
    const float* in = nullptr;
    const float* weight = nullptr;  // [all groups]
    uint16_t* out = nullptr;
    int64_t tokens = 0, in_stride = 0, out_stride = 0;
    int group_width = 0;
    float eps = 0;
    bool round = true;  // rounds `in` to BF16
    bool overlap = false;
};
cudaError_t launch_norm_rows(const NormRowsArgs& args, int groups, cudaStream_t stream);

struct ActivateArgs {
    const float* in = nullptr;
    uint8_t* out = nullptr;
    int64_t tokens = 0, in_stride = 0;
    int width = 0, tile_tokens = 0;
    RowCodes codes;
    int activation = 0;     // nibble::Activation, -1: none
    bool gated = false;     // gate and up are the halves of a row, or
    bool by_turns = false;  // alternate every 16 columns
    bool overlap = false;
};
cudaError_t launch_activate(const ActivateArgs& args, cudaStream_t stream);

// Converts rows of BF16 to rows of BF16 or codes.
struct ActivateRowsArgs {
    const std::byte* in = nullptr;
    std::byte* out = nullptr;
    float* amax = nullptr;  // may be null
    int64_t tokens = 0, width = 0;
    RowCodes codes;
    int activation = 0;
    bool gated = false;
    bool overlap = false;
};
cudaError_t launch_activate_rows(const ActivateRowsArgs& args, cudaStream_t stream);

struct AddRowsArgs {
    float* y = nullptr;
    const float* x = nullptr;
    int64_t count = 0;
    bool overlap = false;
};
cudaError_t launch_add_rows(const AddRowsArgs& args, cudaStream_t stream);

struct RoundArgs {
    float* x = nullptr;
    int64_t count = 0;
    bool overlap = false;
};
cudaError_t launch_round(const RoundArgs& args, cudaStream_t stream);

// The destination of keys and values.
struct CacheArgs {
    uint8_t* pages = nullptr;
    const float* k_scales = nullptr;
    const float* v_scales = nullptr;
    int64_t page_stride = 0;
    int kv_heads = 0, page_tokens = 0;
    KvDims dims, padded;
    KvType type = KvType::bf16;
};
struct RotaryArgs {
    const int32_t* positions = nullptr;
    const float* cos = nullptr;
    const float* sin = nullptr;
    int dims = 0;
    bool interleaved = false;
};
struct RopeArgs {
    CacheArgs cache;
    RotaryArgs rotary;
    const float* qkv = nullptr;
    const int64_t* slots = nullptr;
    const float* q_norm = nullptr;
    const float* k_norm = nullptr;
    uint16_t* q = nullptr;
    int64_t tokens = 0, qkv_stride = 0;
    int q_heads = 0;
    float eps = 0;
    bool overlap = false;
};
cudaError_t launch_rope(const RopeArgs& args, cudaStream_t stream);

// BF16 rows whose addresses are multiples of 16 bytes; tokens * (q_heads + 2 kv_heads) is below 2^31.
struct RopeRowsArgs {
    RopeArgs rope;  // without qkv
    const uint16_t* qkv = nullptr;
    uint16_t* k = nullptr;  // [tokens, kv_heads, dims.k]; null: writes to the cache
    uint16_t* v = nullptr;  // like k, with dims.v = dims.k
    bool overlap = false;
};
cudaError_t launch_rope_rows(const RopeRowsArgs& args, cudaStream_t stream);

struct LatentArgs {
    CacheArgs cache;
    RotaryArgs rotary;
    const float* q_in = nullptr;
    const float* kv = nullptr;
    const float* shared = nullptr;
    const int64_t* slots = nullptr;
    uint16_t* q = nullptr;
    int64_t tokens = 0, q_stride = 0, shared_stride = 0;
    int nope = 0;
    bool overlap = false;
};
cudaError_t launch_latent(const LatentArgs& args, cudaStream_t stream);

struct AppendArgs {
    CacheArgs cache;
    const uint16_t* k = nullptr;
    const uint16_t* v = nullptr;
    const int64_t* slots = nullptr;
    int64_t tokens = 0;
    bool overlap = false;
};
cudaError_t launch_append(const AppendArgs& args, cudaStream_t stream);

struct ArgmaxArgs {
    const float* logits = nullptr;
    int32_t* index = nullptr;
    int64_t tokens = 0, width = 0;
    bool overlap = false;
};
cudaError_t launch_argmax(const ArgmaxArgs& args, cudaStream_t stream);

}  // namespace nibble::cuda
