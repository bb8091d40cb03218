// y = x W^T on a GPU with W in NVFP4 or MXFP4 and x in BF16 (W4A16): describe, plan, prepack, run.
//
// One order of sums for every m, the house rule: K is cut into eight chunks of ceil(k / 2048) records of 256 columns
// each (the last ones may be shorter or empty); a chunk is one chain of mma.sync.m16n8k16 or wgmma.m64nNk16 (the same
// bits) in FP32 from zero, over the column order of kernels/w4a16_record.h; y = (((c0 + c1) + (c2 + c3)) + ((c4 + c5) +
// (c6 + c7))) * tensor scale * 2^7. So a token's result depends on its own row of x and on W alone, not on m, on its
// place in the batch, or on how the plan spreads the work.
//
// Pointers are device pointers, 16-byte aligned (tensor scale: 4). All functions queue work and return at once; they
// neither allocate nor wait. kernels/cuda_absent/ implements this header in a build without CUDA.
#pragma once

#include "formats/format.h"
#include "kernels/elementwise.h"
#include "kernels/moe_cuda.h"
#include "kernels/product_cuda.h"
#include "tensor/device.h"
#include "tensor/quant_matrix.h"

namespace nibble::cuda {

// Rows of W are padded to a multiple of 16, columns to one of 256: zero codes under a valid scale.
struct MatmulProblem {
    int64_t m = 0, n = 0, k = 0;  // x [m, k] BF16, W [n, k], y [m, n] FP32
    Format weights = Format::nvfp4;
    // W's tiles of 16 rows are those of a gate and of an up projection by turns (RowTurns{16, 32}), n / 2 rows each,
    // a multiple of 16.
    bool gated = false;
};

// How the work is spread; zeros: the plan chooses. m > 8: a thread block takes `tokens` tokens (16, 32, 64, 96 or 128)
// of row_blocks * 64 rows; K is cut between `k_parts` warpgroups in it and `parts` thread blocks, powers of two. Which
// combinations are compiled: visit_shape() in kernels/cuda/w4a16_wide.cu; 64, 96, 128 x 2 x 1 in
// w4a16_prefill.cu, where `parts` are only of the tiles that are left after as many as fill the GPU.
struct MatmulTiling {
    int tokens = 0, row_blocks = 0, k_parts = 0, parts = 0;
    bool prefill() const { return row_blocks == 2 && k_parts == 1; }  // w4a16_prefill.cu's
    // Of `parts`, of this tile: parts of K end with a slice of the tokens each, in w4a16_prefill.cu of whole groups of
    // eight.
    int most_parts() const;
};

// What one launch looks like. Make it once per problem and device.
struct MatmulPlan {
    MatmulProblem problem;
    bool units = false;  // one token, work dealt out chunk by chunk: see w4a16_token.cu; the rest is zero
    // m <= 8
    int split = 1;            // thread blocks (a cluster) that share rows, each with a part of K
    int tiles = 0;            // 16-row tiles of a cluster
    int chunks_per_warp = 0;  // one after the other
    int slots = 1;            // records of a warp on their way, 1 or 2
    int tokens_per_pass = 0;  // as many rows of x as fit into shared memory
    int64_t shared_bytes = 0;
    int multiprocessors = 0;
    // m > 8
    MatmulTiling tiling{};
    int64_t permuted_bytes = 0;   // of permute()'s output; 0: x is read as it is
    int64_t workspace_bytes = 0;  // zero once, before the first use; kernels of one stream may share it

    bool norms = false;                                    // takes MatmulOptions::norm: one token
    bool activates() const { return tiling.tokens == 0; }  // takes MatmulFactors::activated
};
// Errors: k no multiple of 16, another format, x too wide for shared memory (m <= 8), a tiling that is not compiled.
Result<MatmulPlan> plan_matmul(const MatmulProblem& problem, const DeviceInfo& device, const MatmulTiling& tiling = {});

// W as the kernels read it. A type of its own, so that no exporter can take it for a canonical matrix.
template <class Byte>
struct BasicPackedMatrix {
    int64_t rows = 0, cols = 0;
    Byte* records = nullptr;  // packed_bytes(rows, cols)
    Format format = Format::nvfp4;
};
using PackedMatrix = BasicPackedMatrix<const std::byte>;
using PackedSpan = BasicPackedMatrix<std::byte>;

int64_t packed_bytes(int64_t rows, int64_t cols);  // of a whole matrix, padding included

// Where the rows of a part lie that takes turns with another: runs of `run` rows begin `step` rows apart. Gate and up
// by halves of a tile: 8 and 16; by tiles: 16 and 32. run 0: all adjacent.
struct RowTurns {
    int run = 0, step = 0;
};

// Canonical -> packed and back, exactly. prepack: w's rows become rows [first_row, first_row + w.rows) of `out`, parts
// of a stack come one after the other; a part that ends at out.rows also writes the padding. With turns w.rows and
// first_row are multiples of a run. Block scales other than the 126 positive finite ones of E4M3, or E8M0 outside
// 2^-118 ... 2^8, have no place in the layout: their number is added to *refused (zero it before, read it after the
// stream is synchronized; the result is void unless it is 0). tensor_scale stays with the caller.
Status prepack(const QuantView& w, int64_t first_row, const PackedSpan& out, uint32_t* refused, const Stream& stream,
               const RowTurns& turns = {});
Status unpack(const PackedMatrix& w, const QuantSpan& out, const Stream& stream);

struct MatmulOptions {
    // Start while the kernel before it in the stream still runs, and wait for it only before x is read (programmatic
    // dependent launch). That kernel must not write W.
    bool overlap = false;
    // Plans with `norms`, in place of x: x = rms_norm(h + update) * weight and h_out = h + update, the bits of
    // cuda::add_norm(). Every thread block does it for itself: cheaper than a kernel of its own.
    struct Norm {
        const std::byte* h = nullptr;   // [k] BF16
        const float* update = nullptr;  // [k]; null: x is the norm of h
        const float* weight = nullptr;  // [k]
        float eps = 0;
        std::byte* h_out = nullptr;    // [k] BF16, not h
        int32_t* nonfinite = nullptr;  // becomes 0 where the sum holds a NaN or an infinity; may be null
        std::byte* x_out = nullptr;    // [k] BF16: x, for who else reads it; may be null
    } norm{};
    // With a norm, where takes_side(): y = product() of that x and w, by more thread blocks of the same launch.
    struct Side {
        const Operand* w = nullptr;
        float* y = nullptr;  // [rows of w]
    } side{};
};
// y = sum * (tensor scale or its row's) * 2^7 + bias. All may be null.
struct MatmulFactors {
    const float* tensor_scale = nullptr;  // one
    const float* row_scales = nullptr;    // [n], instead: stacked matrices
    const float* bias = nullptr;          // [n]
    int64_t y_stride = 0;                 // floats from row to row of y; 0: n
    // Plans that activate, in place of y and as cuda::activate() has it: [m, n] BF16, bf16(a(bf16(y))), or of a gated
    // problem [m, n / 2], bf16(a(bf16(gate)) * bf16(up)).
    std::byte* activated = nullptr;
    Activation activation{};
};
// x [m, k] row-major -> the order of columns and tiles of tokens that plans with permuted_bytes > 0 read.
Status permute(const MatmulPlan& plan, const std::byte* x, std::byte* out, const MatmulOptions& options,
               const Stream& stream);
// x [m, k] BF16, row-major or permuted (see there), y [m, n] FP32.
// `workspace`: plan.workspace_bytes, null when that is 0.
Status matmul(const MatmulPlan& plan, const std::byte* x, const PackedMatrix& w, const MatmulFactors& factors, float* y,
              std::byte* workspace, const MatmulOptions& options, const Stream& stream);

// Whether a launch of a plan that norms also makes the product of its x with `side`, whose inputs have no scale.
bool takes_side(const MatmulPlan& plan, const Operand& side);

// y [rows of w] = product() of the norm's x and w, in one launch, where norms_few_rows(): a router's.
bool norms_few_rows(const Operand& w);
Status norm_product(const MatmulOptions::Norm& norm, const Operand& w, float* y, bool overlap, const Stream& stream);

// The products of a mixture's experts, one launch for all of them: rows of the input's `rows` and of the output lie
// sorted by expert, those of expert e in [begin[e], begin[e + 1]) (on the device). The order of sums is matmul()'s.
struct PackedExperts {
    int count = 0;                      // at most 1024
    PackedMatrix first;                 // the others follow, packed_bytes() apart
    const float* row_scales = nullptr;  // [count, rows]
    const float* bias = nullptr;        // [count, rows]; may be null
    const int32_t* begin = nullptr;     // [count + 1]
};
// One token of a mixture whose experts its products choose themselves, as route() would (`config` without groups; a
// launch less between the router and the weights), or find chosen in `routing`.
struct ExpertChoice {
    RouterConfig config;
    const float* logits = nullptr;  // [experts]; null: `routing` holds the choice
    const float* bias = nullptr;
    Routing routing;  // what route() writes, the first product does
};
struct ExpertsInput {
    const std::byte* x = nullptr;   // rows of BF16, `stride` elements apart, a multiple of 8 (0: adjacent)
    const int32_t* rows = nullptr;  // [slots]: the row of x behind each; null: itself
    int64_t slots = 0;              // begin[count]
    int64_t stride = 0;
    // The kernel before is a grouped_matmul with the same `begin`: with overlap weights are asked for before it is
    // done.
    bool routed = false;
    // One token's slots, `config.top_k` of them, where takes_one_token(); non-null `rows` say that all read row 0.
    const ExpertChoice* choice = nullptr;
    // With a choice, where takes_beside(): y = matmul() of one row and w, by more thread blocks of the same launch,
    // which need not wait for the choice. A shared expert's last product beside the first one of the others.
    struct Beside {
        const std::byte* x = nullptr;  // [cols of w] BF16
        PackedMatrix w;                // rows 0: none
        MatmulFactors factors;
        float* y = nullptr;  // [rows of w]
    } beside{};
};
// Either y [slots, rows of W] FP32, or, activated as by activate(), `out` BF16 [slots, width]: gated, width is half the
// rows and gates lie in the upper halves of the tiles, what they gate in the lower ones.
struct ExpertsOutput {
    float* y = nullptr;
    int64_t y_stride = 0;  // floats from row to row; 0: rows of W
    std::byte* out = nullptr;
    Activation activation = Activation::silu;
    bool gated = false;
    // In place of y, of one token's choice and where takes_combine(): combine_experts() of it, into `sum`.
    struct Combine {
        const float* weights = nullptr;  // [top_k]
        const float* shared = nullptr;   // [rows of W]; may be null
        float* sum = nullptr;            // [rows of W]
    } combine{};
};
// Once per device, before the first grouped_matmul.
Status prepare_grouped_matmul(const DeviceInfo& device);
// Whether products of one token with `w` take a choice.
bool takes_one_token(const RouterConfig& config, const PackedExperts& w);
bool takes_beside(const RouterConfig& config, const PackedExperts& w, const PackedMatrix& beside);
bool takes_combine(const RouterConfig& config, const PackedExperts& w);
Status grouped_matmul(const ExpertsInput& in, const PackedExperts& w, const ExpertsOutput& out, bool overlap,
                      const Stream& stream);

}  // namespace nibble::cuda
