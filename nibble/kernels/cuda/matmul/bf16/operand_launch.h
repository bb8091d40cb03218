// Kernels called by kernels/cuda/matmul/bf16/operand_matmul.cpp, which checks the arguments. Pointers are device
// pointers.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace nibble::cuda {

// W in tiles of 64 x 64: [rows / 64][cols / 64][64 rows][128 bytes]; the 16-byte chunk i of a row is at i ^ row % 8.
inline constexpr int operand_tile = 64, operand_tile_bytes = 8192, operand_row_tile_bytes = 2048;

struct ProductArgs {
    const uint8_t* x = nullptr;
    const int32_t* rows = nullptr;  // may be null
    const uint8_t* tiles = nullptr;
    const float* row_scales = nullptr;
    const float* tile_scales = nullptr;
    int tile_shift = 7;  // a tile scale covers 1 << tile_shift rows
    const float* bias = nullptr;
    const float* token_scales = nullptr;
    const float* group_scales = nullptr;
    float scale = 1, input_scale = 1;
    float* y = nullptr;
    uint16_t* y16 = nullptr;  // instead of y, rounded to BF16: launch_sm90_matmul_bf16(), launch_sm90_matmul_fp8()
    int64_t x_stride = 0, y_stride = 0;  // bytes, floats
    int tokens = 0, n = 0, k = 0;
    int k_tiles = 0;            // tiles of 64 columns
    int row_tiles = 0;          // tiles of 16 rows
    int warps = 0, stages = 0;  // stages: set by launch functions
    // Experts: 0 for a single matrix.
    int experts = 0;
    const int32_t* begin = nullptr;
    const float* expert_scales = nullptr;
    int64_t expert_bytes = 0;
    bool overlap = false;
};
// Up to 64 tokens per thread block, mma.sync.
cudaError_t launch_matmul_bf16_m64(const ProductArgs& args, int token_tiles, int tile_tokens, cudaStream_t stream);
cudaError_t prepare_matmul_bf16_m64();
// Like launch_matmul_bf16_m64(), for up to eight tokens and few rows per multiprocessor.
bool fits_matmul_bf16_m8(const ProductArgs& args);
cudaError_t launch_matmul_bf16_m8(ProductArgs args, cudaStream_t stream);
cudaError_t prepare_matmul_bf16_m8();
// Few rows, any number of tokens: K in eight chunks. No experts, no tile_scales.
cudaError_t launch_matmul_bf16_splitk(const ProductArgs& args, cudaStream_t stream);
// wgmma; no `rows`, no experts. args.warps: tiles of tokens that share one pass over W.
struct WideProductTile {
    int tokens = 256;    // 16, 32, 64, 128 with one row group, 128 or 256 with two; tile_scales: 128 with two
    int row_groups = 2;  // groups of 64 rows
};
cudaError_t launch_sm90_matmul_bf16(const ProductArgs& args, WideProductTile tile, cudaStream_t stream);
cudaError_t prepare_sm90_matmul_bf16();

// x and W as E4M3 codes. x_stride is a multiple of 128, with zeros after the columns. W in tiles of 8 x 128, [rows /
// 8][cols / 128][8 rows][128 bytes]; the 16-byte chunk i of a row is at i ^ row. No `rows`, no experts.
inline constexpr int fp8_tile_bytes = 1024, fp8_most_narrow_tokens = 64;
struct Fp8ProductArgs {
    ProductArgs product;
    int stage_groups = 1, token_rows = 0, stages = 0;  // set by launch_sm90_matmul_fp8()
};
// narrow: up to fp8_most_narrow_tokens. medium: up to 128, if thread blocks of fewer rows fill the GPU in one wave.
// square: tiles of 128 rows by two thread blocks x 128 tokens. wide: launch_sm90_matmul_fp8_m256().
enum class Fp8Kernel : uint8_t { narrow, medium, square, wide };
struct Fp8Choice {
    Fp8Kernel kernel = Fp8Kernel::square;
    int rows = 0;  // rows of W per thread block, for narrow and medium
};
Fp8Choice choose_fp8(const ProductArgs& product, int multiprocessors);
cudaError_t launch_sm90_matmul_fp8(const ProductArgs& product, const Fp8Choice& choice, int multiprocessors,
                                   cudaStream_t stream);
cudaError_t prepare_sm90_matmul_fp8();
// launch_sm90_matmul_fp8() for many tokens: two thread blocks share a tile of 256 tokens x 256 rows.
bool fits_sm90_matmul_fp8_m256(const ProductArgs& product);
int64_t fp8_wide_tiles(const ProductArgs& product);
cudaError_t launch_sm90_matmul_fp8_m256(const ProductArgs& product, int multiprocessors, cudaStream_t stream);
cudaError_t prepare_sm90_matmul_fp8_m256();

// The same for experts, in tiles of one of these numbers of tokens; `rows` may be set.
inline constexpr int fp8_experts_tiles[] = {8, 16, 32, 64, 128};
cudaError_t launch_sm90_experts_fp8(const ProductArgs& args, int tile_tokens, int multiprocessors, cudaStream_t stream);
cudaError_t prepare_sm90_experts_fp8();

struct OperandArgs {
    const uint8_t* from = nullptr;          // values, or codes
    const uint8_t* block_scales = nullptr;  // for codes; may be null
    int64_t rows = 0, cols = 0;             // shape of `from`
    int64_t first_row = 0;
    uint8_t* tiles = nullptr;
    int kind = 0;   // 0 BF16, 1 F16, 2 F32, 3 E4M3 codes, 4 E2M1 codes
    int block = 0;  // columns per block scale
    bool e8m0 = false;
    bool swizzled = false;         // block scales in the layout of formats/swizzle.h
    uint16_t* rows_out = nullptr;  // writes row-major values here instead of tiles
};
cudaError_t launch_make_fp8_operand(const OperandArgs& args,
                                    cudaStream_t stream);  // E4M3, in the tiles of launch_sm90_matmul_fp8()
cudaError_t launch_make_bf16_operand(const OperandArgs& args, cudaStream_t stream);

struct InputsArgs {
    const uint16_t* x = nullptr;
    uint16_t* out = nullptr;
    float* scales = nullptr;
    int64_t tokens = 0, cols = 0, stride = 0;
    float input_scale = 1;
    int format = 0;      // nibble::ActivationFormat
    bool codes = false;  // writes E4M3 bytes, out_pitch apart, with zeros after the columns
    int64_t out_pitch = 0;
    int experts = 0;
    const int32_t* begin = nullptr;
    const float* expert_scales = nullptr;
    bool overlap = false;
};
cudaError_t launch_quantize_inputs(const InputsArgs& args, cudaStream_t stream);

}  // namespace nibble::cuda
