// Y[m, n] = scale[n] * sum over k of X[m, k] * W[n, k]: the one product of the engine, on a CPU.
//
// Order of sums (the contract: it depends on K and the formats alone, never on M, the thread, or the instruction set).
// K is cut into chunks of 256 (128 for fp8_block128 weights and fp8_group128 inputs). Inside a chunk
// s = fma(x_k, w_k, s), k ascending from s = +0; chunk sums are added in order: acc = acc + s, or, where a chunk has
// its own FP32 scale c (tile scale, group scale, their product), acc = fma(s, c, acc). Then y = acc * scale[n].
//   plain W         w_k the value, scale 1
//   nvfp4, mx*      w_k = code * block scale (exact in FP32), scale the tensor scale or 1
//   fp8, fp8_row    w_k the code's value, scale the tensor's or the row's
//   fp8_block128    w_k the code's value, chunk scale the tile's
// Inputs may be quantized first (MatmulInput::activation), row by row, exactly as kernels/quantize_activations does:
// x_k is then the code's value (fp8*), or code * block scale (mx*), and the input's FP32 scale multiplies scale[n]
// first (fp8, fp8_token) or the chunk scale (fp8_group128).
// nvfp4 inputs on nvfp4 weights: a block of 16 is an exact integer dot product d of doubled codes; inside a chunk
// s = fma(d, sx * sw, s) over its 16 blocks, sx and sw the E4M3 block scales (their product is exact), and
// scale = 0.25 * (input_scale * tensor scale).
//
// One output is one lane of a vector register in every variant, so `ref`, AVX2 and AVX-512 give the same bits.
#pragma once

#include "base/error.h"
#include "base/thread_pool.h"
#include "tensor/matrix.h"
#include "tensor/quant_matrix.h"

#include <memory>
#include <span>
#include <string_view>

namespace nibble {

// A weight in the layout of a kernel: panels of 16 or 32 output rows, k-major inside. Made once at load; a type of its
// own, so that it can never be written to a checkpoint.
class PackedMatrix {
public:
    PackedMatrix();
    PackedMatrix(PackedMatrix&&) noexcept;
    PackedMatrix& operator=(PackedMatrix&&) noexcept;
    ~PackedMatrix();

    int64_t rows() const;   // N, outputs
    int64_t cols() const;   // K, inputs
    Format format() const;  // none for plain weights
    DType dtype() const;    // of plain weights: bf16 or f32 (f16 is widened to f32)
    int64_t bytes() const;

    struct Panels;  // known to kernels/cpu and kernels/ref only
    explicit PackedMatrix(std::unique_ptr<Panels> panels);
    const Panels& panels() const { return *panels_; }

private:
    std::unique_ptr<Panels> panels_;
};

// BF16, F16 or F32.
Result<PackedMatrix> prepack(const MatrixView& weight, ThreadPool& pool);
// [rows, cols] in any format; nvfp4 and mx need whole blocks (format_fits).
Result<PackedMatrix> prepack(const QuantView& weight, ThreadPool& pool);
// The transpose W^T [K, N] of a plain or decoded weight, for dX = dY W in a backward pass: BF16 or F32 as it comes,
// quantized weights decoded to F32.
Result<PackedMatrix> prepack_transposed(const MatrixView& weight, ThreadPool& pool);
// Several matrices with equal K and format stacked along N (q/k/v, gate/up): one product instead of several. Rows keep
// their own scale.
Result<PackedMatrix> prepack_stacked(std::span<const QuantView> weights, ThreadPool& pool);
Result<PackedMatrix> prepack_stacked(std::span<const MatrixView> weights, ThreadPool& pool);

struct MatmulInput {
    const float* x = nullptr;  // [rows, K]
    int64_t rows = 0;
    int64_t stride = 0;  // floats from row to row
    ActivationFormat activation = ActivationFormat::none;
    float input_scale = 1.0f;  // nvfp4 (amax / 2688) and fp8 (amax / 448) only
};

struct MatmulKernels {
    std::string_view name;  // "avx512", "avx2", "ref"
    bool (*supported)();
    // y [x.rows, w.rows()], y_stride floats from row to row. Work is split over the pool by output columns and rows.
    void (*matmul)(const PackedMatrix& w, const MatmulInput& x, float* y, int64_t y_stride, ThreadPool& pool);
};

// Fastest first, `ref` last: plain loops over formats/, the definition above read aloud.
std::span<const MatmulKernels> matmul_kernels();
// The first supported entry, or the one named; unknown names and entries this CPU lacks are errors that list the
// choices.
Result<const MatmulKernels*> select_matmul_kernels(std::string_view force = {});

}  // namespace nibble
