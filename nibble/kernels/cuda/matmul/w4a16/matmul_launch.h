// Launch functions of the W4A16 kernels, called by kernels/cuda/matmul/w4a16/matmul.cpp and by kernels/cuda/moe/.
// Callers check the arguments. Pointers are device pointers, 16-byte aligned. For each kernel: an argument block
// (..Args) that the kernel receives, a shape (..Shape) that selects the compiled variant, launch_.. and, where a kernel
// needs more shared memory than the default, prepare_.. (once per device).
//
//   gemv      1 to 8 tokens          matmul_w4a16_m8.cu
//   token     1 token, in units      matmul_w4a16_m1.cu
//   wide      9 to 32 tokens         sm90_matmul_w4a16_m32.cu
//   prefill   33 tokens and more     sm90_matmul_w4a16_m128.cu
//   experts   mixtures               experts_w4a16_*.cu, sm90_experts_w4a16.cu
#pragma once

#include "formats/format.h"
#include "kernels/cuda/moe/moe_launch.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace nibble::cuda {

inline constexpr int matmul_chunks = 8;
// Bytes between rows of x in shared memory: lanes of adjacent tokens read different banks.
inline constexpr int64_t x_row_padding = 16;

// A scale byte becomes BF16 as (the byte in all four bytes of a word & keep) | set (kernels/w4a16_record.h).
struct ScaleBits {
    uint32_t keep = 0, set = 0;
};
ScaleBits scale_bits(Format format);  // only for formats that have records

// Conversion between canonical NVFP4 or MXFP4 (codes, scales) and records, rows [first_row, first_row + rows).
// launch_w4a16_prepack writes records and then `padding` rows of zeros; launch_w4a16_unpack is its inverse.
struct PackArgs {
    int64_t rows = 0, cols = 0, first_row = 0, padding = 0;
    bool mx = false;
    int run = 0, step = 0;  // RowInterleave
    uint8_t* codes = nullptr;
    uint8_t* scales = nullptr;
    uint8_t* records = nullptr;
    uint32_t* refused = nullptr;  // launch_w4a16_prepack adds the number of scales that records cannot hold
};
cudaError_t launch_w4a16_prepack(const PackArgs& args, cudaStream_t stream);
cudaError_t launch_w4a16_unpack(const PackArgs& args, cudaStream_t stream);

// Epilogue, as MatmulFactors: y = sum * scale * 2^7 + bias. Pointers may be null.
struct OutputFactors {
    const float* tensor_scale = nullptr;
    const float* row_scales = nullptr;
    const float* bias = nullptr;
    int64_t y_stride = 0;
};

// Fused RMSNorm prologue of one token: every thread block computes x = rms_norm(h + update) * weight for itself, and
// the first thread block writes h + update to h_out.
struct GemvNorm {
    const uint16_t* h = nullptr;  // null: x is given
    const float* update = nullptr;
    const float* weight = nullptr;
    uint16_t* h_out = nullptr;
    uint16_t* x_out = nullptr;  // may be null
    int32_t* nonfinite = nullptr;
    float eps = 0;
};
// A second product of the normalised x in the same launch (a router). The weight is an exact operand, summed in the
// order that operand_matmul_cuda.h has for matrices of few rows. One extra thread block per 16 rows, after the others.
struct GemvSide {
    const uint8_t* tiles = nullptr;
    const float* row_scales = nullptr;
    const float* bias = nullptr;
    float scale = 1;
    float* y = nullptr;
    int n = 0, k_tiles = 0, row_tiles = 0;  // row_tiles 0: none
};
inline constexpr int norm_pairs = 4;  // pairs of columns per thread
int norm_row_bytes(int width);        // shared memory of the prologue

struct GemvArgs {
    const uint8_t* x = nullptr;
    GemvNorm norm;
    const uint8_t* records = nullptr;
    OutputFactors factors;
    float* y = nullptr;
    int n = 0, tokens = 0;
    int row_records = 0, chunk_records = 0;  // records per tile of rows, per chunk (the last may have fewer or none)
    int active = 0;                          // token kernel: number of chunks that have records
    int tiles = 0, row_tiles = 0;            // tiles per thread block or cluster (token kernel: at most), and in all
    uint32_t x_bytes = 0, x_pitch = 0;       // per token
    ScaleBits scale_bits;
    // Fused activation, instead of y: [tokens][n] activation(y). paired: tiles of gate and up alternate, and the output
    // is [tokens][n / 2] activation(gate) * up.
    uint16_t* gated = nullptr;
    bool paired = false;
    GemvSide side;
    int blocks = 0;      // thread blocks without those of `side`; launch_matmul_w4a16_m8() fills it in
    int activation = 0;  // nibble::Activation
    bool overlap = false;
};
struct GemvShape {
    int chunks_per_warp = 1, split = 1, slots = 1;
    int64_t shared_bytes = 0;
};
cudaError_t launch_matmul_w4a16_m8(const GemvArgs& args, const GemvShape& shape, cudaStream_t stream);

// One token with the work distributed in units of one chunk of one tile (matmul_w4a16_m1.cu). The caller sets
// args.blocks.
struct TokenShape {
    int warps = 0, slots = 0;  // slots: ring buffer of a warp, records in flight, 1 to 4
    int64_t shared_bytes = 0;
};
cudaError_t launch_matmul_w4a16_m1(const GemvArgs& args, const TokenShape& shape, cudaStream_t stream);
cudaError_t prepare_matmul_w4a16_m1(int64_t bytes);
int token_ring_bytes(int warps, int slots);  // shared memory of the ring buffers
// The kernel for 9 to 32 tokens.
struct WideShape {
    int tokens = 0;      // per tile: 16 or 32
    int row_blocks = 0;  // blocks of 64 rows per thread block
    int k_parts = 0;     // split-K inside a thread block
    int cluster = 1;     // split-K inside a cluster, whose sums meet in shared memory: 1 or 2 thread blocks
};
struct WideArgs {
    const uint8_t* x = nullptr;  // permuted
    const uint8_t* records = nullptr;
    OutputFactors factors;
    float* y = nullptr;
    // Split-K over clusters: sums meet in a binary tree in global memory, one tree for every
    // [token tile][64 rows][slice of the tokens]; a tree has parts / cluster leaves.
    uint32_t* nodes = nullptr;  // arrival flags of the trees; zero before and after a launch
    float* slots = nullptr;     // partial sums left at the nodes: [nodes][64 rows x tokens of a slice]
    float* parks = nullptr;     // own partial sums that do not fit elsewhere, up to 32 tokens:
                                // [multiprocessor][warpgroup][levels][64 rows x tokens of a tile]
    int n = 0, tokens = 0;
    int row_records = 0, chunk_records = 0;
    int row_tiles = 0, row_groups = 0, token_tiles = 0;
    int parts = 1;   // split-K: thread blocks along K
    int whole = 0;   // prefill: number of tiles whose K is not split; a multiple of the clusters where parts > 1
    int chunks = 8;  // chunks per warpgroup: matmul_chunks / (parts * k_parts)
    int levels = 1;  // levels of a warpgroup's own tree: log2(chunks)
    int band = 8;    // token tiles that adjacent thread blocks compute together, for reuse in the L2
    ScaleBits scale_bits;
    bool overlap = false;
};
cudaError_t launch_sm90_matmul_w4a16_m32(const WideArgs& args, const WideShape& shape, cudaStream_t stream);
cudaError_t prepare_sm90_matmul_w4a16_m32(const WideShape& shape);

// The kernel for more than 32 tokens, in tiles of 64, 96 or 128 tokens. row_groups count groups of 256 rows. Only tiles
// whose K is split use the workspace: nodes [split tile][64 rows], slots [nodes][parts][64 rows x tokens of a tile].
cudaError_t launch_sm90_matmul_w4a16_m128(const WideArgs& args, int tokens, int multiprocessors, cudaStream_t stream);
cudaError_t prepare_sm90_matmul_w4a16_m128(int tokens);

struct PermuteArgs {
    const uint8_t* x = nullptr;
    uint8_t* out = nullptr;
    int tokens = 0, blocks = 0;  // blocks of 64 columns, padding included
    int cols = 0;                // columns of x; the output has zeros after them
    bool overlap = false;
};
cudaError_t launch_w4a16_permute(const PermuteArgs& args, int tile, cudaStream_t stream);

// Products of experts. Slots, the rows of the output, are sorted by expert (PackedExperts in w4a16_matmul_cuda.h).
struct ExpertsArgs {
    const uint8_t* x = nullptr;
    const int32_t* rows = nullptr;   // the row of x that a slot reads; null: slot i reads row i
    const int32_t* begin = nullptr;  // [experts + 1]
    const uint8_t* records = nullptr;
    const float* row_scales = nullptr;  // [experts, n]
    const float* bias = nullptr;        // [experts, n]; may be null
    float* y = nullptr;                 // the output: y or `out`
    uint16_t* out = nullptr;
    int64_t x_stride = 0, y_stride = 0;  // bytes; elements of the output
    int64_t expert_bytes = 0;
    int activation = -1;  // nibble::Activation applied to `out`; -1: none
    bool gated = false;   // rows 0 ... 7 of a tile are gates of its rows 8 ... 15
    int experts = 0, n = 0, k = 0;
    int row_records = 0, chunk_records = 0, row_tiles = 0;
    ScaleBits scale_bits;
    bool overlap = false;
    // The previous kernel writes neither `begin` nor `rows`, so weights may be requested before that kernel ends.
    bool early = false;
};
// tiles: 8, 16 or 64 tokens. few: tiles of 8, where fits_experts_w4a16_m8(), `parts` warps per 16 rows (1 or 4). many:
// the kernel on wgmma, with tiles of 16, 32 or 48 tokens.
enum class ExpertsKernel : uint8_t { tiles, few, many };
struct ExpertsLaunchShape {
    ExpertsKernel kernel = ExpertsKernel::tiles;
    int tokens = 8, parts = 1, blocks = 132;
};
cudaError_t launch_experts_w4a16_m64(const ExpertsArgs& args, const ExpertsLaunchShape& shape, cudaStream_t stream);
cudaError_t prepare_experts_w4a16_m64();
// Returns true if x of a tile of eight tokens, `records` records of 256 columns wide, fits into shared memory as a
// whole.
bool fits_experts_w4a16_m8(int records, int experts);
cudaError_t launch_experts_w4a16_m8(const ExpertsArgs& args, int parts, int blocks, cudaStream_t stream);
cudaError_t prepare_experts_w4a16_m8();
// wgmma: Hopper only.
cudaError_t launch_sm90_experts_w4a16(const ExpertsArgs& args, int tokens, int blocks, cudaStream_t stream);
cudaError_t prepare_sm90_experts_w4a16();
// One token: slot i belongs to the i-th expert of the token. choose: every thread block computes the choice from
// route.logits for its own use, and, where sort.begin is given, the first thread block writes the choice to where route
// and sort point. Without `choose`, route.experts holds the choice.
struct OneTokenArgs {
    // An additional dense product in the same launch (ExpertsInput::dense).
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
    // Distribution of tiles: `each` tiles per thread block, one more for the first `more` thread blocks.
    // launch_experts_w4a16_m1() fills in both members.
    struct Deal {
        int each = 0, more = 0;
    } expert_deal, dense_deal;
    // For the second product of a mixture: the weighted sum over experts instead of y (CombineArgs).
    struct Combine {
        const float* weights = nullptr;  // [top_k]
        const float* shared = nullptr;
        float* sum = nullptr;  // null: none
    } combine;
    // launch_experts_w4a16_m1_units() fills in: chunks that have records, units per thread block, shared memory of the
    // choice.
    int active = 0, units = 0, route_bytes = 0;
    // launch_experts_w4a16_m1() fills in: rows of x, and the number of thread blocks that compute experts. The thread
    // blocks after expert_blocks compute `dense`.
    int x_rows = 0, expert_blocks = 0;
};
bool fits_experts_w4a16_m1(const ExpertsArgs& args, const OneTokenArgs& one, int multiprocessors);
cudaError_t launch_experts_w4a16_m1(const ExpertsArgs& args, OneTokenArgs one, int multiprocessors,
                                    cudaStream_t stream);
cudaError_t prepare_experts_w4a16_m1();
// The same with the work distributed in units (w4a16_units.cuh), for a first product without an additional dense one,
// or for a second product with the fused sum.
bool fits_experts_w4a16_m1_units(const ExpertsArgs& args, OneTokenArgs one, int multiprocessors);
cudaError_t launch_experts_w4a16_m1_units(const ExpertsArgs& args, OneTokenArgs one, int multiprocessors,
                                          cudaStream_t stream);
cudaError_t prepare_experts_w4a16_m1_units();

// Raises the shared memory limit of the gemv kernels to `bytes`.
cudaError_t allow_gemv_shared(int64_t bytes);

}  // namespace nibble::cuda
