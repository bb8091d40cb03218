// Y[m, n] = scale[n] * sum over k of X[m, k] * W[n, k]: the matrix product of the engine on a CPU.
//
// Order of sums. This is a contract: the order depends on K and the formats only, never on M, the thread or the
// instruction set. K is split into blocks of B. Inside a block t = fma(x_k, w_k, t), k ascending from t = +0. Then acc
// = fma(t, c, acc), blocks ascending from acc = +0. Finally y = acc * (input scale * scale[n]), which MatmulOutput may
// shift and round.
//
//   weights            B     w_k            c                 scale[n]
//   plain              256   the value      1                 1
//   fp8, fp8_row       256   the code's     1                 the tensor's, the row's
//   fp8_block128       128   the code's     the tile's        1
//   int4               128   the code's     the group's       1
//   mxfp8, mxfp4       32    the code's     2^e of the block  1
//   nvfp4_bs32, nvfp4  32 16 the code's     E4M3 of the block the tensor's
//
//   inputs             x_k                  and
//   none               the value            input scale 1
//   fp8, fp8_token     the code's           input scale: MatmulInput::input_scale, the row's
//   fp8_group128       the code's           B at most 128, c = group's scale * the weight's c
//   mxfp8, mxfp4       code * 2^e (exact)   input scale 1
//   nvfp4              code * E4M3 (exact)  input scale: MatmulInput::input_scale; on nvfp4 weights x_k is the code's
//                                           value and c = the E4M3 of both (exact), so that t is an exact small integer
//                                           (times 1/4) which no order of summation changes
//
// Inputs are quantized row by row as in kernels/quantize_activations.h. One output is one lane of a vector register in
// every variant, so `ref`, AVX2 and AVX-512 give the same bits.
//
// The above is the order `lanes`. The order `tiles` is a faster mode that must be selected by name, the order of
// Intel's AMX (TDPBF16PS, Intel SDM 2B). x_k (nvfp4: always code * E4M3) is rounded to BF16. w_k is the code's value
// times its block's factor, exact in BF16 (fp8_block128, int4: the code's value alone). K is split into tiles of 32. In
// a tile e = fma(x_k, w_k, e) over its even k and o likewise over its odd k, both ascending from +0. Then acc = acc +
// (e
// + o), tiles ascending from acc = +0. Subnormal operands and results of all these steps become zero with their sign.
// With fp8_block128 weights and fp8_group128 inputs, acc of every 128 k is a t as above, with c = tile scale * group
// scale. The rest equals `lanes`; F32 weights always use `lanes`.
#pragma once

#include "base/error.h"
#include "base/thread_pool.h"
#include "kernels/elementwise.h"
#include "kernels/quantize_activations.h"
#include "tensor/matrix.h"
#include "tensor/quant_matrix.h"

#include <memory>
#include <optional>
#include <span>
#include <string_view>

namespace nibble {

// A weight in the layout of a kernel: panels of 32 output rows, k-major inside. Made once when a model is loaded. It
// has its own type so that it cannot be written to a checkpoint.
class PackedMatrix {
public:
    PackedMatrix();
    PackedMatrix(PackedMatrix&&) noexcept;
    PackedMatrix& operator=(PackedMatrix&&) noexcept;
    ~PackedMatrix();

    int64_t rows() const;   // N, outputs
    int64_t cols() const;   // K, inputs
    Format format() const;  // none for plain weights
    DType dtype() const;    // type of plain weights: bf16 or f32 (f16 is converted to f32)
    int64_t bytes() const;

    struct Panels;  // kernels/panels.h
    explicit PackedMatrix(std::unique_ptr<Panels> panels);
    const Panels& panels() const { return *panels_; }

private:
    std::unique_ptr<Panels> panels_;
};

// Common errors: another dtype, incomplete blocks (format_fits), a code or block scale that is NaN.
// Packs a BF16, F16 or F32 weight.
Result<PackedMatrix> prepack(const MatrixView& weight, ThreadPool& pool);
// Packs [rows, cols] in any quantized format.
Result<PackedMatrix> prepack(const QuantView& weight, ThreadPool& pool);
// Packs the transpose W^T [K, N] of a BF16, F16 or F32 weight [N, K], for dX = dY W in a backward pass. F16 is
// converted to F32. Quantized weights must be decoded first.
Result<PackedMatrix> prepack_transposed(const MatrixView& weight, ThreadPool& pool);
// The same for stacked matrices with equal dtype and K.
Result<PackedMatrix> prepack_transposed(std::span<const MatrixView> parts, ThreadPool& pool);
// Packs several matrices with equal K and format, stacked along N (q/k/v, gate/up), for one product. Rows keep their
// own scales.
Result<PackedMatrix> prepack_stacked(std::span<const QuantView> weights, ThreadPool& pool);
Result<PackedMatrix> prepack_stacked(std::span<const MatrixView> weights, ThreadPool& pool);

struct MatmulInput {
    const float* x = nullptr;  // [rows, K]
    int64_t rows = 0;
    int64_t stride = 0;  // floats from row to row
    ActivationFormat activation = ActivationFormat::none;
    float input_scale = 1.0f;  // nvfp4 (amax / 2688) and fp8 (amax / 448) only
};

// Destination and epilogue of a product: y + bias, then rounded to BF16. Gated: the first half of the outputs are gates
// of the second half (N is a multiple of 64), each finished as above; y = activation(gate) * other half, rounded too
// (the bits of ElementwiseKernels::activate).
struct MatmulOutput {
    float* y = nullptr;           // [rows, N], gated [rows, N / 2]
    int64_t stride = 0;           // floats from row to row
    const float* bias = nullptr;  // [N], or null
    bool bf16 = false;
    std::optional<Activation> gated = {};
};
inline bool can_gate(int64_t outputs) { return outputs % 64 == 0; }

struct MatmulKernels {
    std::string_view name;  // "avx512", "avx2", "ref"; "amx", "ref"
    bool (*supported)();    // by this CPU
    // Splits the work over the pool by output columns and rows. K must suit x.activation (activation_fits).
    void (*matmul)(const PackedMatrix& w, const MatmulInput& x, const MatmulOutput& out, ThreadPool& pool);
    // Quantizes one row of `cols` values with the bits that matmul uses internally.
    void (*quantize_row)(const float* x, int64_t cols, ActivationFormat format, float input_scale,
                         const ActivationRow& out);
};

enum class SumOrder : uint8_t { lanes, tiles };
// Returns true if the order `tiles` differs from `lanes` for these weights.
bool sums_in_tiles(const PackedMatrix& w);

// Fastest first, `ref` last. `ref` is plain loops over formats/ that follow the definition above.
std::span<const MatmulKernels> matmul_kernels(SumOrder order = SumOrder::lanes);
// Returns the first supported entry, or the one named by `force`. Errors: an unknown name, an entry that this CPU does
// not support; the message lists the choices. `ref` of `tiles` is selected by name only.
Result<const MatmulKernels*> select_matmul_kernels(std::string_view force = {}, SumOrder order = SumOrder::lanes);

}  // namespace nibble
