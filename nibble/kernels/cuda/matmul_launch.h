// What kernels/cuda/matmul.cpp calls. Arguments are checked before they come here; device pointers, 16-byte aligned.
#pragma once

#include "formats/format.h"
#include "kernels/cuda/moe_launch.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace nibble::cuda {

inline constexpr int matmul_chunks = 8;
// Between rows of x in shared memory: lanes of neighbouring tokens read different banks.
inline constexpr int64_t x_row_padding = 16;

// How a scale byte becomes BF16 (kernels/w4a16_record.h): (byte four times & keep) | set.
struct ScaleBits {
    uint32_t keep = 0, set = 0;
};
ScaleBits scale_bits(Format format);  // of formats with records

// Canonical NVFP4 or MXFP4 and records; launch_unpack writes codes and scales. Rows [first_row, first_row + rows);
// launch_prepack also writes `padding` rows of zeros behind them. half: 0, or 1 and 2 for the rows 0 ... 7 and 8 ... 15
// of every tile from first_row on.
struct PackArgs {
    int64_t rows = 0, cols = 0, first_row = 0, padding = 0;
    bool mx = false;
    int run = 0, step = 0;  // RowTurns
    uint8_t* codes = nullptr;
    uint8_t* scales = nullptr;
    uint8_t* records = nullptr;
    uint32_t* refused = nullptr;  // added to by launch_prepack
};
cudaError_t launch_prepack(const PackArgs& args, cudaStream_t stream);
cudaError_t launch_unpack(const PackArgs& args, cudaStream_t stream);

// y = sum * (row's or tensor scale) * 2^7 + bias; any may be null.
struct OutputFactors {
    const float* tensor_scale = nullptr;
    const float* row_scales = nullptr;
    const float* bias = nullptr;
    int64_t y_stride = 0;
};

// One token's x = rms_norm(h + update) * weight, made by every thread block; the first one writes the sum to h_out.
struct GemvNorm {
    const uint16_t* h = nullptr;  // null: x is given
    const float* update = nullptr;
    const float* weight = nullptr;
    uint16_t* h_out = nullptr;
    uint16_t* x_out = nullptr;  // may be null
    int32_t* nonfinite = nullptr;
    float eps = 0;
};
// Another product of that x, of exact operands in the order of few rows (product_cuda.h): a router beside what else
// reads the norm. A thread block per 16 rows, behind the others.
struct GemvSide {
    const uint8_t* tiles = nullptr;
    const float* row_scales = nullptr;
    const float* bias = nullptr;
    float scale = 1;
    float* y = nullptr;
    int n = 0, k_tiles = 0, row_tiles = 0;  // row_tiles 0: none
};
inline constexpr int norm_pairs = 4;  // of columns, a thread
int norm_row_bytes(int width);        // of shared memory

struct GemvArgs {
    const uint8_t* x = nullptr;
    GemvNorm norm;
    const uint8_t* records = nullptr;
    OutputFactors factors;
    float* y = nullptr;
    int n = 0, tokens = 0;
    int row_records = 0, chunk_records = 0;  // of a row tile, of a chunk (the last chunks may have fewer or none)
    int active = 0;                          // token kernel: chunks that have records
    int tiles = 0, row_tiles = 0;            // of a thread block or cluster (token kernel: at most), in all
    uint32_t x_bytes = 0, x_pitch = 0;       // per token
    ScaleBits scale_bits;
    // In place of y: activation(y) [tokens][n], or, paired, tiles are gate and up by turns and activation(gate) * up
    // [tokens][n / 2].
    uint16_t* gated = nullptr;
    bool paired = false;
    GemvSide side;
    int blocks = 0;      // without the side's; launch_gemv() fills it in
    int activation = 0;  // nibble::Activation
    bool overlap = false;
};
struct GemvShape {
    int chunks_per_warp = 1, split = 1, slots = 1;
    int64_t shared_bytes = 0;
};
cudaError_t launch_gemv(const GemvArgs& args, const GemvShape& shape, cudaStream_t stream);

// One token, work in units (w4a16_token.cu); args.blocks are given.
struct TokenShape {
    int warps = 0, slots = 0;  // slots: records of a warp on their way, 1 to 4
    int64_t shared_bytes = 0;
};
cudaError_t launch_token(const GemvArgs& args, const TokenShape& shape, cudaStream_t stream);
cudaError_t prepare_token(int64_t bytes);
int token_ring_bytes(int warps, int slots);  // of shared memory
// The kernel for 9 to 32 tokens: how a thread block is made, and one launch of it.
struct WideShape {
    int tokens = 0;      // of a tile: 16, 32
    int row_blocks = 0;  // of 64 rows in a thread block
    int k_parts = 0;     // of K in a thread block
    int cluster = 1;     // thread blocks along K that share their sums through shared memory: 1 or 2
};
struct WideArgs {
    const uint8_t* x = nullptr;  // permuted
    const uint8_t* records = nullptr;
    OutputFactors factors;
    float* y = nullptr;
    // Trees of clusters: [token tile][64 rows][slice of the tokens][parts / cluster]
    uint32_t* nodes = nullptr;  // zero before and after
    float* slots = nullptr;     // [the same][64 rows x tokens of a slice]
    float* parks = nullptr;     // up to 32 tokens: [multiprocessor][warpgroup][levels][64 rows x tokens of a tile]
    int n = 0, tokens = 0;
    int row_records = 0, chunk_records = 0;
    int row_tiles = 0, row_groups = 0, token_tiles = 0;
    int parts = 1;   // thread blocks along K
    int whole = 0;   // prefill: tiles that are not cut along K, a multiple of the clusters where parts > 1
    int chunks = 8;  // of a warpgroup: matmul_chunks / (parts * k_parts)
    int levels = 1;  // log2(chunks)
    int band = 8;    // tiles of tokens that neighbouring thread blocks go through together
    ScaleBits scale_bits;
    bool overlap = false;
};
cudaError_t launch_wide(const WideArgs& args, const WideShape& shape, cudaStream_t stream);
cudaError_t prepare_wide(const WideShape& shape);

// The kernel for more than 32 tokens, tiles of 64, 96 or 128; row_groups are of 256 rows. nodes: [cut tile][64 rows],
// slots: [the same][parts][64 rows x tokens of a tile].
cudaError_t launch_w4a16_prefill(const WideArgs& args, int tokens, int multiprocessors, cudaStream_t stream);
cudaError_t prepare_w4a16_prefill(int tokens);

struct PermuteArgs {
    const uint8_t* x = nullptr;
    uint8_t* out = nullptr;
    int tokens = 0, blocks = 0;  // of 64 columns, padding included
    int cols = 0;                // of x; zeros behind
    bool overlap = false;
};
cudaError_t launch_permute(const PermuteArgs& args, int tile, cudaStream_t stream);

// Products of experts: rows of x and y sorted by expert.
struct ExpertsArgs {
    const uint8_t* x = nullptr;
    const int32_t* rows = nullptr;   // of x; may be null
    const int32_t* begin = nullptr;  // [experts + 1]
    const uint8_t* records = nullptr;
    const float* row_scales = nullptr;  // [experts, n]
    const float* bias = nullptr;        // [experts, n]; may be null
    float* y = nullptr;                 // one of the two
    uint16_t* out = nullptr;
    int64_t x_stride = 0, y_stride = 0;  // bytes; elements of the output
    int64_t expert_bytes = 0;
    int activation = -1;  // nibble::Activation, of `out`; -1: none
    bool gated = false;   // rows 0 ... 7 of a tile are gates of its rows 8 ... 15
    int experts = 0, n = 0, k = 0;
    int row_records = 0, chunk_records = 0, row_tiles = 0;
    ScaleBits scale_bits;
    bool overlap = false;
    bool early = false;  // `begin` and `rows` are not what the kernel before writes: weights may come before it is done
};
// How a thread block of it is made: tokens of a tile 8, 16 or 64; `parts` warps share 16 rows (1, or 4 with 8
// tokens). `many`: the kernel on wgmma; tokens 16, 32 or 48.
struct ExpertsShape {
    int tokens = 8, parts = 1, blocks = 132;
    bool many = false;
};
cudaError_t launch_experts(const ExpertsArgs& args, const ExpertsShape& shape, cudaStream_t stream);
cudaError_t prepare_experts();
// Tiles of eight tokens whose columns, `records` of 256, all fit into shared memory.
bool fits_few_experts(int records, int experts);
cudaError_t launch_few_experts(const ExpertsArgs& args, int parts, int blocks, cudaStream_t stream);
cudaError_t prepare_few_experts();
// On Hopper.
cudaError_t launch_many_experts(const ExpertsArgs& args, int tokens, int blocks, cudaStream_t stream);
cudaError_t prepare_many_experts();
// One token: slot i belongs to its i-th expert. `choose`: every thread block makes the choice out of route.logits, for
// its own use, and where sort.begin is given the first one writes it to what route and sort point at; else
// route.experts holds it.
struct OneTokenArgs {
    // ExpertsInput::beside.
    struct Dense {
        const uint8_t* x = nullptr;
        const uint8_t* records = nullptr;
        OutputFactors factors;
        float* y = nullptr;
        int n = 0, k = 0, row_records = 0, chunk_records = 0, row_tiles = 0;  // n 0: none
        ScaleBits scale_bits;
    } dense;
    RouteArgs route;
    SortArgs sort;
    bool choose = false;
    // Tiles of a thread block: `each`, one more for the first `more` blocks. launch_one_token() fills them in.
    struct Deal {
        int each = 0, more = 0;
    } expert_deal, dense_deal;
    // Of a mixture's second product: sum = CombineArgs' in place of y.
    struct Combine {
        const float* weights = nullptr;  // [top_k]
        const float* shared = nullptr;
        float* sum = nullptr;  // null: none
    } combine;
    int active = 0, units = 0,
        route_bytes = 0;                // launch_token_experts() fills them in: chunks with records, a block's units
    int x_rows = 0, expert_blocks = 0;  // launch_one_token() fills them in; blocks behind expert_blocks are dense
};
bool fits_one_token(const ExpertsArgs& args, const OneTokenArgs& one, int multiprocessors);
cudaError_t launch_one_token(const ExpertsArgs& args, OneTokenArgs one, int multiprocessors, cudaStream_t stream);
cudaError_t prepare_one_token();
// The same with work in units (w4a16_token.cuh): a first product without one beside it, or one to combine.
bool fits_token_experts(const ExpertsArgs& args, OneTokenArgs one, int multiprocessors);
cudaError_t launch_token_experts(const ExpertsArgs& args, OneTokenArgs one, int multiprocessors, cudaStream_t stream);
cudaError_t prepare_token_experts();

// Lets gemv kernels take `bytes` of shared memory.
cudaError_t allow_gemv_shared(int64_t bytes);

}  // namespace nibble::cuda
