// W4A16 on a GPU: y = x W^T with W in NVFP4 or MXFP4 and x in BF16. Use: describe the problem, plan, prepack the
// weight, run. The second half of the header has the same product for the experts of a mixture.
//
// Order of sums, the same for every m. K is cut into eight chunks of ceil(k / 2048) records, a record being 256 columns
// (kernels/w4a16_record.h); the last chunks may be shorter or empty. One chunk is one FP32 chain of mma.sync.m16n8k16
// or wgmma.m64nNk16 that starts from zero; both instructions give the same bits. With c0 ... c7 the sums of the chunks:
//
//   y = (((c0 + c1) + (c2 + c3)) + ((c4 + c5) + (c6 + c7))) * tensor scale * 2^7
//
// So the result of a token depends on its own row of x and on W. It does not depend on m, on the token's place in the
// batch, or on how a plan splits the work (tiles, split-K, clusters).
//
// Pointers are device pointers, 16-byte aligned (tensor scale: 4). Functions queue work and return at once; they
// neither allocate nor wait.
#pragma once

#include "formats/format.h"
#include "kernels/elementwise.h"
#include "kernels/kernel_choice.h"
#include "kernels/moe_cuda.h"
#include "kernels/operand_matmul_cuda.h"
#include "tensor/device.h"
#include "tensor/quant_matrix.h"

namespace nibble::cuda {

// W is stored padded with zero codes under a valid scale: rows to a multiple of 16, columns to a multiple of 256.
struct MatmulProblem {
    int64_t m = 0, n = 0, k = 0;  // x [m, k] BF16, W [n, k], y [m, n] FP32
    Format weights = Format::nvfp4;
    // W holds a gate and an up projection of n / 2 rows each (a multiple of 16), whose tiles of 16 rows alternate:
    // gate, up, gate, up (RowInterleave{16, 32}). A plan may then end with the activation.
    bool gated = false;
};

// How a product of more than eight tokens is split. Zeros: the plan chooses. A thread block computes `tokens` tokens
// (16, 32, 64, 96 or 128) by row_blocks * 64 rows. K is split over `k_parts` warpgroups of a thread block and over
// `parts` thread blocks (split-K); both are powers of two. Compiled combinations: visit_shape() in
// kernels/cuda/matmul/w4a16/sm90_matmul_w4a16_m32.cu, and 64, 96 or 128 tokens x 2 x 1 in sm90_matmul_w4a16_m128.cu.
// The latter splits K only for the tiles that remain after whole waves of the GPU.
struct MatmulTiling {
    int tokens = 0, row_blocks = 0, k_parts = 0, parts = 0;
    bool prefill() const { return row_blocks == 2 && k_parts == 1; }  // sm90_matmul_w4a16_m128.cu's
    // Largest valid `parts`. Each part of K finishes the sums of a slice of the tile's tokens, and a slice has a least
    // size (sm90_matmul_w4a16_m128.cu: whole groups of eight tokens).
    int most_parts() const;
};

// gemv: 1 to 8 tokens, or more in passes where there is no wgmma. token: one token, work distributed chunk by chunk;
// the kernel chooses tiles, warps and ring buffers itself. wide: 9 to 32 tokens. prefill: more.
enum class MatmulKernel : uint8_t { gemv, token, wide, prefill };

// The launch of one problem on one device. Make a plan once and keep it.
struct MatmulPlan {
    MatmulProblem problem;
    MatmulKernel kernel = MatmulKernel::gemv;
    // gemv
    int split = 1;            // split-K: thread blocks of a cluster that share rows
    int tiles = 0;            // tiles of 16 rows per cluster
    int chunks_per_warp = 0;  // computed one after the other
    int slots = 1;            // ring buffer of a warp: records in flight, 1 or 2
    int tokens_per_pass = 0;  // rows of x that fit into shared memory
    int64_t shared_bytes = 0;
    int multiprocessors = 0;
    // wide, prefill
    MatmulTiling tiling{};
    int64_t permuted_bytes = 0;   // size of permute()'s output; 0: x is read in row order
    int64_t workspace_bytes = 0;  // set to zero once, before the first use; kernels of one stream may share it

    bool norms = false;                                    // accepts MatmulOptions::norm (one token only)
    bool activates() const { return tiling.tokens == 0; }  // accepts MatmulFactors::activated
};
// Errors: k is not a multiple of 16, a format without records, x too wide for shared memory (m <= 8), a tiling that is
// not compiled.
Result<MatmulPlan> plan_matmul(const MatmulProblem& problem, const DeviceInfo& device, const MatmulTiling& tiling = {});
KernelChoice describe(const MatmulPlan& plan);

// W in the layout of the kernels. It is a type of its own, so that an exporter cannot mistake it for a canonical
// matrix.
template <class Byte>
struct BasicPackedMatrix {
    int64_t rows = 0, cols = 0;
    Byte* records = nullptr;  // packed_bytes(rows, cols)
    Format format = Format::nvfp4;
};
using PackedMatrix = BasicPackedMatrix<const std::byte>;
using PackedSpan = BasicPackedMatrix<std::byte>;

int64_t packed_bytes(int64_t rows, int64_t cols);  // bytes of a whole matrix, padding included

// Interleaving of two matrices in one: runs of `run` adjacent rows of a part begin `step` rows apart. Gate and up that
// alternate by half tiles: {8, 16}; by tiles: {16, 32}. run 0: all rows are adjacent.
struct RowInterleave {
    int run = 0, step = 0;
};

// Canonical layout to packed layout and back, without loss. prepack writes rows [first_row, first_row + w.rows) of
// `out`; the parts of a stack are packed one after the other, and the part that ends at out.rows also writes the
// padding. With `interleave`, w.rows and first_row are multiples of interleave.run.
// The layout has no code for some block scales: of E4M3 all but the 126 positive finite ones, of E8M0 those outside
// 2^-118 ... 2^8. prepack adds their number to *refused. Set *refused to zero before, and read it after the stream is
// synchronized; a number above 0 means that the result must not be used. The caller keeps the tensor scale.
Status prepack(const QuantView& w, int64_t first_row, const PackedSpan& out, uint32_t* refused, const Stream& stream,
               const RowInterleave& interleave = {});
Status unpack(const PackedMatrix& w, const QuantSpan& out, const Stream& stream);

struct MatmulOptions {
    // Programmatic dependent launch: start while the previous kernel of the stream still runs, and wait for its end
    // only before x is read. The previous kernel must not write W.
    bool overlap = false;
    // Fused RMSNorm prologue, for plans with `norms`: x = rms_norm(h + update) * weight and h_out = h + update replace
    // the argument x, with the bits of cuda::add_norm(). Every thread block computes all of x, which takes less time
    // than a separate kernel.
    struct Norm {
        const std::byte* h = nullptr;   // [k] BF16
        const float* update = nullptr;  // [k]; null: nothing is added to h
        const float* weight = nullptr;  // [k]
        float eps = 0;
        std::byte* h_out = nullptr;    // [k] BF16, not h
        int32_t* nonfinite = nullptr;  // set to 0 if the sum holds a NaN or an infinity; may be null
        std::byte* x_out = nullptr;    // [k] BF16: a copy of x for other readers; may be null
    } norm{};
    // A second product of the normalised x, if takes_side(): y = matmul(x, w), by extra thread blocks of the same
    // launch. Used for a router together with a shared expert.
    struct Side {
        const Operand* w = nullptr;
        float* y = nullptr;  // [rows of w]
    } side{};
};
// Epilogue: y = sum * scale * 2^7 + bias, where scale is the tensor scale or the row's. Pointers may be null.
struct MatmulFactors {
    const float* tensor_scale = nullptr;  // one
    const float* row_scales = nullptr;    // [n], instead of tensor_scale, for stacked matrices
    const float* bias = nullptr;          // [n]
    int64_t y_stride = 0;                 // floats from row to row of y; 0: n
    // Fused activation, for plans where activates() is true. Replaces y; BF16, the bits of cuda::activate():
    // [m, n] bf16(a(bf16(y))), or for a gated problem [m, n / 2] bf16(a(bf16(gate)) * bf16(up)).
    std::byte* activated = nullptr;
    Activation activation{};
};
// x [m, k] in row order to the order that plans with permuted_bytes > 0 read: tiles of tokens, permuted columns.
Status permute(const MatmulPlan& plan, const std::byte* x, std::byte* out, const MatmulOptions& options,
               const Stream& stream);
// x [m, k] BF16, in row order or as permute() wrote it (permuted_bytes > 0); y [m, n] FP32.
// `workspace`: plan.workspace_bytes bytes, or null when that is 0.
Status matmul(const MatmulPlan& plan, const std::byte* x, const PackedMatrix& w, const MatmulFactors& factors, float* y,
              std::byte* workspace, const MatmulOptions& options, const Stream& stream);

// Returns true if a launch of a plan with `norms` can also compute the product with `side` (MatmulOptions::Side). The
// inputs of `side` have no scale.
bool takes_side(const MatmulPlan& plan, const Operand& side);

// Norm and product of one token in one launch, for matrices of few rows (a router) where norms_few_rows() is true:
// y [rows of w] = matmul(x, w) with x as in MatmulOptions::Norm.
bool norms_few_rows(const Operand& w);
Status norm_matmul(const MatmulOptions::Norm& norm, const Operand& w, float* y, bool overlap, const Stream& stream);

// Products of the experts of a mixture, one launch for all experts. A slot is one (token, chosen expert) pair. Slots
// are sorted by expert: those of expert e are [begin[e], begin[e + 1]), with `begin` on the device. The order of sums
// is that of matmul().
struct PackedExperts {
    int count = 0;                      // at most 1024
    PackedMatrix first;                 // matrix of expert 0; the others follow, packed_bytes() apart
    const float* row_scales = nullptr;  // [count, rows]
    const float* bias = nullptr;        // [count, rows]; may be null
    const int32_t* begin = nullptr;     // [count + 1]
};
// One token's choice of experts. With `logits` the product kernels choose themselves, as route() would (`config`
// without groups), which saves a launch between the router and the first weights. Without, `routing` holds the choice.
struct ExpertChoice {
    RouterConfig config;
    const float* logits = nullptr;  // [experts]; null: `routing` holds the choice
    const float* bias = nullptr;
    Routing routing;  // with `logits` the first product writes it, as route() would
};
struct ExpertsInput {
    const std::byte* x = nullptr;   // rows of BF16, `stride` elements apart (a multiple of 8; 0: adjacent)
    const int32_t* rows = nullptr;  // [slots]: the row of x that a slot reads; null: slot i reads row i
    int64_t slots = 0;              // begin[count]
    int64_t stride = 0;
    // The previous kernel is a grouped_matmul with the same `begin`. With overlap, weights are then requested before
    // the previous kernel ends.
    bool routed = false;
    // One token's `config.top_k` slots, where takes_one_token(). Non-null `rows` mean that all slots read row 0.
    const ExpertChoice* choice = nullptr;
    // A dense product in the same launch, for a `choice` and if takes_dense(): y = matmul(x, w) of one row, by extra
    // thread blocks that do not wait for the choice. Used for the last product of a shared expert.
    struct Dense {
        const std::byte* x = nullptr;  // [cols of w] BF16
        PackedMatrix w;                // rows 0: none
        MatmulFactors factors;
        float* y = nullptr;  // [rows of w]
    } dense{};
};
// One of two outputs: y [slots, rows of W] FP32, or `out` [slots, width] BF16, activated as by activate(). For a gated
// pair width is half the rows of W; in each tile of 16 rows the upper half are rows of the gate and the lower half the
// rows that the gate multiplies.
struct ExpertsOutput {
    float* y = nullptr;
    int64_t y_stride = 0;  // floats from row to row; 0: rows of W
    std::byte* out = nullptr;
    Activation activation = Activation::silu;
    bool gated = false;
    // The weighted sum over experts instead of y, for one token's choice and where takes_combine(): `sum` gets what
    // combine_experts() computes from y.
    struct Combine {
        const float* weights = nullptr;  // [top_k]
        const float* shared = nullptr;   // [rows of W]; may be null
        float* sum = nullptr;            // [rows of W]
    } combine{};
};
// Call once per device before the first grouped_matmul.
Status prepare_grouped_matmul(const DeviceInfo& device);
// Returns true if the one-token kernels accept these experts: with a choice; with an additional dense product; with the
// fused sum.
bool takes_one_token(const RouterConfig& config, const PackedExperts& w);
bool takes_dense(const RouterConfig& config, const PackedExperts& w, const PackedMatrix& dense);
bool takes_combine(const RouterConfig& config, const PackedExperts& w);
Status grouped_matmul(const ExpertsInput& in, const PackedExperts& w, const ExpertsOutput& out, bool overlap,
                      const Stream& stream);
// Describes the launch of grouped_matmul() with these arguments. Reads no device memory.
Result<KernelChoice> describe_grouped_matmul(const ExpertsInput& in, const PackedExperts& w, const ExpertsOutput& out);

}  // namespace nibble::cuda
