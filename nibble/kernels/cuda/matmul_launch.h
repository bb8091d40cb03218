// What kernels/cuda/matmul.cpp calls. Arguments are checked before they come here; device pointers, 16-byte aligned.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace nibble::cuda {

inline constexpr int matmul_chunks = 8;
// Between rows of x in shared memory: lanes of neighbouring tokens read different banks.
inline constexpr int64_t x_row_padding = 16;

// Canonical NVFP4 and records; launch_unpack writes codes and scales.
struct PackArgs {
    int64_t rows = 0, cols = 0;
    uint8_t* codes = nullptr;
    uint8_t* scales = nullptr;
    uint8_t* records = nullptr;
    uint32_t* refused = nullptr;  // added to by launch_prepack
};
cudaError_t launch_prepack(const PackArgs& args, cudaStream_t stream);
cudaError_t launch_unpack(const PackArgs& args, cudaStream_t stream);

struct GemvArgs {
    const uint8_t* x = nullptr;
    const uint8_t* records = nullptr;
    const float* tensor_scale = nullptr;  // may be null
    float* y = nullptr;
    int n = 0, tokens = 0;
    int row_records = 0, chunk_records = 0;  // of a row tile, of a chunk (the last chunks may have fewer or none)
    int tiles = 0, row_tiles = 0;            // of a thread block or cluster, in all
    uint32_t x_bytes = 0, x_pitch = 0;       // per token
    bool overlap = false;
};
cudaError_t launch_gemv(const GemvArgs& args, int chunks_per_warp, int split, int64_t shared_bytes,
                        cudaStream_t stream);
// Lets gemv kernels take `bytes` of shared memory.
cudaError_t allow_gemv_shared(int64_t bytes);

}  // namespace nibble::cuda
