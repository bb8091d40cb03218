// Quantizing on a GPU: the same operations as kernels/quantize.h over device memory, bit for bit the same results.
//
// Views hold device pointers: data 16-byte aligned, codes and block scales 16-byte aligned (DeviceArena gives 256). All
// functions queue work on `stream` and return at once; they neither allocate nor wait. Maxima and scales that one
// kernel makes and the next one uses stay on the device. Errors: unsupported combination, misaligned pointer, refused
// launch.
#pragma once

#include "base/philox.h"
#include "kernels/device_scan.h"
#include "kernels/device_stats.h"
#include "kernels/quantize.h"
#include "tensor/device.h"

namespace nibble::cuda {

// Nothing seen yet.
Status reset_scan(DeviceScan* scan, const Stream& stream);
// `scan` is a DeviceScan in device memory. Adds a panel to it; scans of panels, or of fusion partners, may share one.
// `first_element`: index of the panel's first element in whatever first_nonfinite counts.
Status scan(const MatrixView& panel, int64_t first_element, DeviceScan* scan, const Stream& stream);

// Maxima on the device, read when the kernel runs: &DeviceScan::amax as a rule. Null for formats with local scales;
// fp8_block128 takes `store` as the least maximum of a tile where it is given (a fusion partner of a single tile).
struct DeviceAmax {
    const float* search = nullptr;
    const float* store = nullptr;
};

// Where results besides codes and scales go; any may be null.
struct QuantizeOutputs {
    float* tensor_scale = nullptr;      // tensor_scale(spec, amax)
    uint64_t* raised_blocks = nullptr;  // added to
};

// Everything check(spec) allows. Searches with one multiplier per tensor (fp8, dynamic NVFP4) are settled before, by
// tensor_losses: *amax.store is then what was chosen. out.tensor_scale is not read. FP8 of a width that is no multiple
// of 16 works, slower.
Status quantize(const MatrixView& panel, const WeightSpec& spec, const DeviceAmax& amax, const QuantSpan& out,
                const QuantizeOutputs& outputs, const Stream& stream);

// Multipliers that one search per block, row or tile may try; tensor_losses takes any number.
inline constexpr int most_multipliers = 256;

// losses[i] += squared error of fake quantization with *search * multipliers[i], in doubles on the device, in row order
// as in kernels/quantize.h. `scratch` has tensor_losses_scratch() doubles.
int64_t tensor_losses_scratch(int64_t rows, int64_t multipliers);
Status tensor_losses(const MatrixView& panel, const WeightSpec& spec, const float* search,
                     std::span<const float> multipliers, double* losses, double* scratch, const Stream& stream);

// Compares `panel` with the weights that it was made from. panel.tensor_scale is read here, on the host. *stats is
// added to; rows[panel.rows] are written.
Status measure(const MatrixView& weights, const QuantView& panel, DeviceStats* stats, RowSums* rows,
               const Stream& stream);
// On the host: adds what quantize and measure found of `panel` (its pointers are not read) as measure of
// kernels/quantize.h adds it, sums row by row.
void add_stats(const DeviceStats& found, std::span<const RowSums> rows, const QuantView& panel, QuantStats& stats);

// What an engine does to the inputs of a linear at run time.
enum class Activations : uint8_t {
    nvfp4,  // blocks of 16 under *input_scale
    mxfp4,
    mxfp8,         // blocks of 32
    fp8_token,     // one FP32 scale per row
    fp8_group128,  // one FP32 scale per 128 consecutive columns, row-major [rows, cols / 128]
};
struct ActivationOutput {
    uint8_t* codes = nullptr;
    uint8_t* block_scales = nullptr;  // swizzled: swizzled_scale_bytes(rows, cols / block), else rows * cols / block
    float* float_scales = nullptr;
    bool swizzled = false;  // block scales in the 128 x 4 layout of formats/swizzle.h, padding zeroed
};
Status quantize_activations(const MatrixView& x, Activations kind, const float* input_scale,
                            const ActivationOutput& out, const Stream& stream);

// NVFP4 as training uses it (formats/stochastic.h): `rotate` transforms every block of 16 by hadamard16(signs),
// `stochastic` rounds element i (row-major) with stream.bits16(i). *tensor_scale is given, as for activations; a
// rotated block may exceed the maximum that it was made from by up to 4 times, and saturates there.
struct TrainingRounding {
    bool rotate = false, stochastic = false;
    uint32_t signs = 0;  // low 16 bits
    PhiloxStream stream;
};
Status quantize_training(const MatrixView& x, const float* tensor_scale, const TrainingRounding& rounding,
                         const ActivationOutput& out, const Stream& stream);

// codes -> values; out_dtype bf16 (rounded to nearest) or f32. `tensor_scale` on the device, null for 1.
Status decode(const QuantView& panel, const float* tensor_scale, DType out_dtype, std::byte* out, const Stream& stream);

// Row-major block scales [rows, cols] -> the 128 x 4 layout of formats/swizzle.h, padding zeroed.
Status swizzle(const uint8_t* scales, int64_t rows, int64_t cols, uint8_t* out, const Stream& stream);

}  // namespace nibble::cuda
