// Kernels called by kernels/cuda/elementwise/elementwise.cpp, which checks the arguments.
#pragma once

#include "base/activation.h"
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
    const float* post_bias = nullptr;
    const float* weight = nullptr;
    const float* bias = nullptr;
    uint8_t* out = nullptr;
    int32_t* nonfinite = nullptr;
    float* amax = nullptr;  // may be null
    int64_t tokens = 0;
    int width = 0, tile_tokens = 0;
    RowCodes codes;
    float eps = 0;
    float update_scale = 1, sum_scale = 1;
    bool centered = false;
    bool overlap = false;
};
inline constexpr int most_norm_width = 32768;
cudaError_t launch_add_norm(const AddNormArgs& args, cudaStream_t stream);

struct NormRowsArgs {
    const float* in = nullptr;
    const float* weight = nullptr;  // [all groups]
    uint16_t* out = nullptr;
    float* wide = nullptr;  // instead of out
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
    int activation = 0;             // nibble::Activation, -1: none
    bool gated = false;             // gate and up are the halves of a row, or
    bool interleaved_gate = false;  // alternate every 16 columns
    ClampedGlu clamp;               // limit 0: none
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
    ClampedGlu clamp;  // limit 0: none
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

struct ScaleColumnsArgs {
    static constexpr int most_parts = 5;
    float* x = nullptr;
    int64_t tokens = 0, stride = 0;
    int first = 0, columns = 0;
    int end[most_parts] = {};  // end of a part, counted from `first`
    float by[most_parts] = {};
    bool overlap = false;
};
cudaError_t launch_scale_columns(const ScaleColumnsArgs& args, cudaStream_t stream);

struct ScaleRowsArgs {
    const uint16_t* x = nullptr;
    uint16_t* y = nullptr;
    int64_t count = 0;
    float by = 1;
    bool overlap = false;
};
cudaError_t launch_scale_rows(const ScaleRowsArgs& args, cudaStream_t stream);

struct RoundArgs {
    float* x = nullptr;
    int64_t count = 0;
    float scale = 1, cap = 0;
    bool overlap = false;
};
cudaError_t launch_round(const RoundArgs& args, cudaStream_t stream);

struct GateHeadsArgs {
    uint16_t* x = nullptr;  // [tokens, heads, dim]
    const float* gates = nullptr;
    const uint16_t* gate_rows = nullptr;  // instead of gates
    int64_t tokens = 0, stride = 0;
    int heads = 0, dim = 0, pitch = 0;
    bool by_head = false;
    bool overlap = false;
};
cudaError_t launch_gate_heads(const GateHeadsArgs& args, cudaStream_t stream);

struct PerLayerRowsArgs {
    const float* projected = nullptr;
    const uint16_t* table = nullptr;
    const int32_t* ids = nullptr;
    const float* norm = nullptr;
    const float* gate = nullptr;
    uint16_t* out = nullptr;
    int64_t tokens = 0;
    int width = 0;
    float root = 1, half = 1, eps = 0;
    bool overlap = false;
};
cudaError_t launch_per_layer_rows(const PerLayerRowsArgs& args, cudaStream_t stream);

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

// Holds the options of RopeAppend (rope_options.cu).
struct RopeOptionsArgs {
    RopeArgs rope;
    const uint16_t* qkv16 = nullptr;       // instead of rope.qkv
    const float* joined_scales = nullptr;  // [tokens, 2]: factors of the norms of all of q and k
    float query_beta = 0;
    int64_t query_period = 0, query_offset = 0;
    float value_scale = 1;
    int q_pitch = 0;   // columns from a query head to the next
    int k_at = 0;      // first column of the keys
    int v_at = 0;      // first column of the values
    int kv_heads = 0;  // 0: writes queries only
    bool late = false, value_norm = false;
    bool overlap = false;
};
cudaError_t launch_rope_options(const RopeOptionsArgs& args, cudaStream_t stream);

struct JoinedScalesArgs {
    const float* qkv = nullptr;
    const uint16_t* qkv16 = nullptr;  // instead of qkv
    float* scales = nullptr;
    int64_t tokens = 0, stride = 0;
    int q_width = 0, k_width = 0, k_at = 0;
    float eps = 0;
    bool overlap = false;
};
cudaError_t launch_joined_scales(const JoinedScalesArgs& args, cudaStream_t stream);

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
    float query_beta = 0;
    int64_t query_period = 0;
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
