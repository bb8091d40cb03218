// Quantizing weights on a CPU: scan for the maximum, search scales, encode, decode, measure.
//
// Every entry of the table computes the same bits; `ref` is slow, simple code directly on formats/. Functions process a
// panel of whole rows (for fp8_block128 a multiple of 128 rows, or the last rows) on the calling thread and allocate
// nothing that grows with the matrix. Weights are BF16 or F32 (F16 is converted) and finite; scan first. Maxima and
// search losses use the weight as given. Codes use the weight in the dtype of WeightSpec::weights: if that is BF16, an
// F32 panel is rounded to BF16 first.
#pragma once

#include "base/error.h"
#include "formats/arithmetic.h"
#include "tensor/matrix.h"
#include "tensor/quant_matrix.h"

#include <array>
#include <span>
#include <string>
#include <vector>

namespace nibble {

// How scales are chosen. `multipliers`: tries start, start+step ... stop times the maximum; the least squared error of
// fake quantization wins, the first of equal ones. The search is per block for static NVFP4, per tensor for fp8 and
// dynamic NVFP4, per row or tile for the other FP8 formats. `sweep`: tries the 126 E4M3 values (static NVFP4 only).
struct Search {
    enum class Kind : uint8_t { max, multipliers, sweep } kind = Kind::max;
    float start = 1.0f, stop = 1.0f, step = 1.0f;
    // A search is blind if all candidates have equal losses (their squares vanish in FP32, or no input ever reached the
    // block). The first candidate then wins, as in Model Optimizer. With true, the caller instead repeats the search
    // without statistics, and if that is blind too, uses the maximum. Kernels do not read this field.
    bool maximum_when_blind = false;
    bool operator==(const Search&) const = default;
};

// Returns linspace(start, stop, ceil((stop - start) / step) + 1) with torch's FP32 arithmetic.
std::vector<float> search_multipliers(const Search& search);

// How one weight matrix is quantized.
struct WeightSpec {
    Format format = Format::none;
    bool static_scales = false;    // NVFP4: block maxima are calibrated values (changes zero blocks and rounding)
    float normalization = 448.0f;  // NVFP4: 448, or 256 to leave room for scaling up (four-over-six)
    Search search;
    Arithmetic arithmetic = Arithmetic::reciprocal;
    DType weights =
        DType::bf16;  // BF16, F16 or F32: Model Optimizer's export dtype. F16: the panel's values are F16 values
    bool operator==(const WeightSpec&) const = default;
};

std::string to_string(const WeightSpec& spec);  // "nvfp4 static/256 x{1,1.5}"
// Errors: combinations without a meaning (a sweep for MXFP4, 256 with dynamic scales ...).
Status check(const WeightSpec& spec);

// Maxima from outside the panel. Formats with local scales ignore them.
struct TensorAmax {
    float search = 0;  // normalises fake quantization in searches: the maximum of the tensor (or its group)
    float store = 0;   // determines the stored tensor scale: the fusion group's maximum. fp8_block128: 0, or for a
                       // matrix of a single tile the maximum of its fusion partners, the minimum for the tile's maximum
};

// The FP32 scale of formats that have one (NVFP4's weight_scale_2, fp8's weight_scale); 1 for the others.
float tensor_scale(const WeightSpec& spec, const TensorAmax& amax);

struct Scan {
    float amax = 0;                // over finite elements
    int64_t first_nonfinite = -1;  // row-major index in the panel; -1 if all are finite
};

// Quantization errors summed over a panel. Sums are doubles in a fixed order (a row's lanes, then rows), so equal
// panels give equal bits on every entry. The caller adds panels in row order.
struct QuantStats {
    int64_t elements = 0;
    int64_t blocks = 0;  // number of scales below the tensor: blocks, rows (fp8_row), tiles (fp8_block128), groups
                         // (int4); 0 for fp8
    double squared_error = 0, squared_weight = 0;
    float max_error = 0;     // NaN if a code or scale decodes to NaN
    int64_t zeros = 0;       // nonzero weights that decode to zero
    int64_t saturated = 0;   // weights beyond the largest value their scale can express: |w| > max element * scale
    int64_t sign_flips = 0;  // nonzero weights whose decoded value has the other sign
    int64_t raised_blocks =
        0;  // blocks, rows or tiles whose search chose a multiplier above 1 (four instead of six); by quantize
    std::array<int64_t, 256> codes{};   // occurrences of each code (4-bit formats use 16)
    std::array<int64_t, 256> scales{};  // occurrences of each block scale byte

    QuantStats& operator+=(const QuantStats& other);
    bool operator==(const QuantStats&) const = default;
};

struct QuantizeKernels {
    std::string_view name;  // "avx512", "avx2", "ref"
    bool (*supported)();    // by this CPU
    Scan (*scan)(const MatrixView& panel);
    // Writes codes, block_scales and float_scales of `out`; the caller sets out.tensor_scale to tensor_scale(spec,
    // amax). Adds to stats.raised_blocks only. Per-tensor searches (tensor_losses) run before; amax.store holds their
    // result.
    void (*quantize)(const MatrixView& panel, const WeightSpec& spec, const TensorAmax& amax, const QuantSpan& out,
                     QuantStats& stats);
    // losses[i] += squared error of fake quantization with amax.search * multipliers[i], for the per-tensor searches of
    // fp8 and dynamic nvfp4. Precondition: one of these formats.
    void (*tensor_losses)(const MatrixView& panel, const WeightSpec& spec, const TensorAmax& amax,
                          std::span<const float> multipliers, std::span<double> losses);
    // Decodes to out [rows, cols] FP32: code * (product of scales, formed first).
    void (*decode)(const QuantView& panel, float* out);
    // Compares the panel with its source weights. Does not change raised_blocks.
    void (*measure)(const MatrixView& weights, const QuantView& panel, QuantStats& stats);
};

// Fastest first, `ref` last.
std::span<const QuantizeKernels> quantize_kernels();
// Returns the first supported entry, or the one named by `force`. Errors: an unknown name, an entry that this CPU does
// not support; the message lists the choices.
Result<const QuantizeKernels*> select_quantize_kernels(std::string_view force = {});

}  // namespace nibble
