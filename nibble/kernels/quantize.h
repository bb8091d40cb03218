// Quantizing weights on a CPU: scan for the maximum, search scales, encode, decode, measure.
//
// Every entry of the table computes the same bits; `ref` is the slow obvious one, straight from formats/. All functions
// work on a panel of whole rows (a multiple of 128 rows, or the last rows, for fp8_block128), run on the calling
// thread, and allocate nothing that grows with the matrix. Weights come as BF16 or F32 (F16 widened); every one is
// finite (scan first). Maxima and search losses are those of the weight as it comes. Codes are made from the weight in
// the dtype of WeightSpec::weights: an F32 panel is rounded to BF16 first where that says BF16, else taken as it is.
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

// How scales are chosen. `multipliers`: the candidates start, start+step ... stop times the maximum, least squared
// error of fake quantization wins, the first on equality (per block for static NVFP4, per tensor for fp8 and dynamic
// NVFP4, per row or tile for the other FP8 formats). `sweep`: the 126 E4M3 values (static NVFP4 only).
struct Search {
    enum class Kind : uint8_t { max, multipliers, sweep } kind = Kind::max;
    float start = 1.0f, stop = 1.0f, step = 1.0f;
    // Where all candidates lose alike (their squares vanish in FP32, no input ever reached the block) a search is
    // blind. The first candidate wins then, as in Model Optimizer, whatever it does to the weights; true: the caller
    // asks for what a search without statistics chooses, and where that is blind as well, for the maximum. Kernels do
    // not read it.
    bool maximum_when_blind = false;
    bool operator==(const Search&) const = default;
};

// linspace(start, stop, ceil((stop - start) / step) + 1) as torch computes it in FP32.
std::vector<float> search_multipliers(const Search& search);

// How one weight matrix is quantized.
struct WeightSpec {
    Format format = Format::none;
    bool static_scales = false;    // NVFP4: block maxima are calibrated values (zero blocks and roundings differ)
    float normalization = 448.0f;  // NVFP4: 448, or 256 to leave room above (four-over-six)
    Search search;
    Arithmetic arithmetic = Arithmetic::reciprocal;
    DType weights = DType::bf16;  // BF16, F16 or F32: Model Optimizer's export dtype. F16: the panel's values are F16's
    bool operator==(const WeightSpec&) const = default;
};

std::string to_string(const WeightSpec& spec);  // "nvfp4 static/256 x{1,1.5}"
// Combinations that mean nothing (a sweep for MXFP4, 256 with dynamic scales ...) are errors.
Status check(const WeightSpec& spec);

// Maxima that come from outside the panel. Ignored by formats whose scales are local.
struct TensorAmax {
    float search = 0;  // normalises fake quantization inside the search: the tensor's (or its group's) own maximum
    float store =
        0;  // what the stored tensor scale is made of: the fusion group's maximum. fp8_block128: 0, or for a matrix
            // of a single tile the maximum of its partners, below which the tile's maximum does not fall
};

// The FP32 scale of formats that have one (weight_scale_2 of NVFP4, weight_scale of fp8); 1 for the others.
float tensor_scale(const WeightSpec& spec, const TensorAmax& amax);

struct Scan {
    float amax = 0;                // over finite elements
    int64_t first_nonfinite = -1;  // row-major index in the panel, -1 when all are finite
};

// What is lost, summed over a panel. Sums are doubles in a fixed order (a row's lanes, then rows), so that equal panels
// give equal bits on every entry; panels are added in row order by the caller.
struct QuantStats {
    int64_t elements = 0;
    int64_t blocks = 0;  // scales below the tensor: blocks, rows (fp8_row), tiles (fp8_block128); 0 for fp8
    double squared_error = 0, squared_weight = 0;
    float max_error = 0;     // NaN when a code or scale decodes to NaN
    int64_t zeros = 0;       // nonzero weights that decode to zero
    int64_t saturated = 0;   // weights beyond the largest value their scale can express: |w| > max element * scale
    int64_t sign_flips = 0;  // nonzero weights whose decoded value has the other sign
    int64_t raised_blocks =
        0;  // blocks, rows or tiles whose search chose a multiplier above 1 (four instead of six); by quantize
    std::array<int64_t, 256> codes{};   // how often each code occurs (16 used by 4-bit formats)
    std::array<int64_t, 256> scales{};  // how often each block scale byte occurs

    QuantStats& operator+=(const QuantStats& other);
    bool operator==(const QuantStats&) const = default;
};

struct QuantizeKernels {
    std::string_view name;  // "avx512", "avx2", "ref"
    bool (*supported)();    // by this CPU
    Scan (*scan)(const MatrixView& panel);
    // Writes codes, block_scales and float_scales of `out`; out.tensor_scale is set by the caller to tensor_scale(spec,
    // amax). Adds to stats.raised_blocks only. Per-tensor searches (tensor_losses) come before: their result is in
    // amax.store.
    void (*quantize)(const MatrixView& panel, const WeightSpec& spec, const TensorAmax& amax, const QuantSpan& out,
                     QuantStats& stats);
    // losses[i] += squared error of fake quantization with amax.search * multipliers[i]: the per-tensor searches of fp8
    // and dynamic nvfp4, the only formats this may be called for.
    void (*tensor_losses)(const MatrixView& panel, const WeightSpec& spec, const TensorAmax& amax,
                          std::span<const float> multipliers, std::span<double> losses);
    // out [rows, cols] FP32; code * (scale product formed first).
    void (*decode)(const QuantView& panel, float* out);
    // Compares with the weights the panel came from; leaves raised_blocks alone.
    void (*measure)(const MatrixView& weights, const QuantView& panel, QuantStats& stats);
};

// Fastest first, `ref` last.
std::span<const QuantizeKernels> quantize_kernels();
// The first supported entry, or the one named; unknown names and entries this CPU lacks are errors that list the
// choices.
Result<const QuantizeKernels*> select_quantize_kernels(std::string_view force = {});

}  // namespace nibble
