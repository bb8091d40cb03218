// Kernels called by kernels/cuda/quantize/cast.cpp, which checks the arguments.
#pragma once

#include "formats/training.h"
#include "kernels/cast_args.h"

#include <cuda_runtime_api.h>

namespace nibble::cuda {

inline constexpr int64_t most_cast_rows = int64_t{65535} * 64;  // tiles along one dimension of a grid

struct CastArgs {
    const uint16_t* x = nullptr;
    int64_t rows = 0, cols = 0, stride = 0;
    const float* source_scale = nullptr;  // null: none
    bool by_row = false;
    float factor = 1;
    CastRule rule;
    CastRandom random, signs;
    uint64_t first_sign = 0;
    const float* given = nullptr;
    uint16_t* values = nullptr;
    int64_t pitch = 0;   // row pitch of values, in elements
    int64_t groups = 0;  // blocks along the reduction
    int64_t outer = 0;
    float* scale = nullptr;
    float* amax = nullptr;
    bool has_amax = false;
    float* seen = nullptr;
    CastFactor product;
};
cudaError_t launch_cast(const CastArgs& a, bool down, cudaStream_t stream);
// Both directions of one source. The amax of rows and of columns are adjacent; there is only one if columns are not
// rotated.
cudaError_t launch_cast_both(const CastArgs& rows, const CastArgs& columns, cudaStream_t stream);
cudaError_t launch_block_codes(const CastArgs& a, bool down, cudaStream_t stream);
cudaError_t launch_eden(const CastArgs& a, bool down, cudaStream_t stream);

struct CodesArgs {
    const uint16_t* x = nullptr;  // adjacent rows
    int64_t rows = 0, cols = 0;
    CastRule rule;
    const float* given = nullptr;
    uint8_t* to_rows = nullptr;  // may be null
    bool tiles = false;
    int64_t row_pitch = 0;          // columns in whole groups of 128, also if to_rows is null
    uint8_t* to_columns = nullptr;  // may be null
    int64_t column_pitch = 0;
    CodeScales row_scales, column_scales;  // used with scales per block
    float* scale = nullptr;                // used with a tensor scale
    float* amax = nullptr;
    bool has_amax = false;
    float* seen = nullptr;
    CastFactor product;
};
cudaError_t launch_codes_of(const CodesArgs& a, cudaStream_t stream);

cudaError_t launch_product_scales(const float* a, const float* b, float constant, float* out, int64_t count,
                                  cudaStream_t stream);
cudaError_t launch_see_largest(const uint16_t* x, int64_t count, float* seen, cudaStream_t stream);
cudaError_t launch_clear_clipped(const uint16_t* x, int64_t count, const float* input_scale, uint16_t* dx,
                                 cudaStream_t stream);
cudaError_t launch_renew_scales(const DelayedScales& d, const float* clip, cudaStream_t stream);

cudaError_t launch_split_rows(const SplitRows& s, cudaStream_t stream);
cudaError_t launch_add_term(const float* turned, int64_t rows, int64_t pitch, const float* p, int64_t cols,
                            int64_t rank, float* dw, cudaStream_t stream);
cudaError_t launch_add_rows(float* y, int64_t stride, const float* more, int64_t n, int64_t cols, cudaStream_t stream);
cudaError_t launch_add_step(float* to, const float* from, int64_t count, const float* clip, cudaStream_t stream);

}  // namespace nibble::cuda
