// Kernels called by kernels/cuda/matmul/fused_decode/fused_decode.cpp, which checks the arguments. Pointers are device
// pointers.
#pragma once

#include "kernels/cuda/elementwise/elementwise_launch.h"
#include "kernels/cuda/matmul/w4a16/matmul_launch.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace nibble::cuda {

inline constexpr int fused_decode_steps = 4;
inline constexpr int most_fused_width = 8192;
// Codes (sm90_fused_decode_fp8_m1.cu): bytes per slot of the ring buffer, number of multiplying threads.
inline constexpr int product_slot_bytes = 32 * 1024, fused_decode_threads = 512;
// Records (fused_decode_w4a16_m1.cu): a slot has one record of each of a tile's eight chunks.
inline constexpr int record_slot_bytes = matmul_chunks * 2304;

struct ProductStep {
    // The input is one of rows or norm; if neither is set, the activated output of the previous step.
    const uint16_t* rows = nullptr;
    const float* norm = nullptr;
    int32_t* nonfinite = nullptr;
    const uint8_t* tiles = nullptr;  // or records
    const float* row_scales = nullptr;
    const float* tensor_scale = nullptr;  // for records
    const float* bias = nullptr;
    float* y = nullptr;         // may be null
    uint8_t* handed = nullptr;  // the input of the next step: FP32, or activated
    float scale = 1, input_scale = 1;
    float code_scale = 1;  // scale of an activated output
    int n = 0, k = 0;
    int groups = 0;  // groups of 128 columns
    // A thread block processes `rows_each` rows at a time (gated: half of them are gates, the others are n / 2 rows
    // further), and that many groups are in a slot of the ring buffer.
    int rows_each = 0, stage_groups = 0, works = 0;
    // Records: per row tile and per chunk. A thread block processes `units` units, the first `more` blocks one more. A
    // unit is a tile of 16 rows, or with a span two tiles at that distance: gate and up, or the halves of a head.
    int row_records = 0, chunk_records = 0, units = 0, more = 0, span = 0;
    uint32_t span_magic = 0;  // n / span is the upper half of their product, except for span 1
    bool activated = false, gated = false;
};
struct FusedDecodeArgs {
    ProductStep step[fused_decode_steps];
    int steps = 0;
    const uint16_t* h = nullptr;
    const float* update = nullptr;
    uint16_t* h_out = nullptr;
    uint4* used = nullptr;  // reset to the sentinel
    int used_words = 0;
    unsigned long long* meet = nullptr;
    int width = 0, activation = 0;  // width of h; nibble::Activation
    float eps = 0;
    bool ropes = false;
    bool ropes_inside = false;  // rotates with the last step's outputs instead of after a grid barrier
    RopeArgs rope;              // for the last step's rows
    ScaleBits scale_bits;
    int asked = 0;  // slots in flight
    // Shared memory: these arguments, barriers, sums of rows, the ring buffer, the input's codes, a norm's row or the
    // sums of groups.
    int slots = 0, x_bytes = 0, row_bytes = 0, rotation_bytes = 0, factor_bytes = 0;
    bool overlap = false;
};
// Sets the fields that depend on the grid and on shared memory. Returns whether a kernel exists for these steps.
bool shape_code_decode(FusedDecodeArgs& args, int multiprocessors);
bool shape_record_decode(FusedDecodeArgs& args, int multiprocessors);
cudaError_t launch_sm90_fused_decode_fp8_m1(const FusedDecodeArgs& args, int multiprocessors, cudaStream_t stream);
cudaError_t launch_fused_decode_w4a16_m1(const FusedDecodeArgs& args, int multiprocessors, cudaStream_t stream);

}  // namespace nibble::cuda
