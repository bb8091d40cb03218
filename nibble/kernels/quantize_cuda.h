// Quantization on a GPU: the operations of kernels/quantize.h on device memory with the same results, bit for bit.
//
// Views hold device pointers; data, codes and block scales are 16-byte aligned (DeviceArena gives 256). Functions queue
// work on `stream` and return at once; they neither allocate nor wait. Maxima and scales passed from kernel to kernel
// stay on the device. Errors: unsupported combination, misaligned pointer, failed launch.
#pragma once

#include "base/philox.h"
#include "kernels/device_scan.h"
#include "kernels/device_stats.h"
#include "kernels/quantize.h"
#include "tensor/device.h"

namespace nibble::cuda {

// Resets a scan to its initial state.
Status reset_scan(DeviceScan* scan, const Stream& stream);
// Adds a panel to `scan`, a DeviceScan in device memory; panels or fusion partners may share one. `first_element` is
// the index of the panel's first element in the numbering of first_nonfinite.
Status scan(const MatrixView& panel, int64_t first_element, DeviceScan* scan, const Stream& stream);

// Maxima in device memory, read when the kernel runs; usually &DeviceScan::amax. Null for formats with local scales.
// fp8_block128 uses `store`, if given, as the minimum of a tile's maximum (a fusion partner of a single tile).
struct DeviceAmax {
    const float* search = nullptr;
    const float* store = nullptr;
};

// Additional outputs; any may be null.
struct QuantizeOutputs {
    float* tensor_scale = nullptr;      // tensor_scale(spec, amax)
    uint64_t* raised_blocks = nullptr;  // added to
};

// Supports everything that check(spec) allows. Searches with one multiplier per tensor (fp8, dynamic NVFP4) run before,
// by tensor_losses(); *amax.store is then the chosen maximum. Ignores out.tensor_scale. FP8 with a width that is not a
// multiple of 16 works but is slower.
Status quantize(const MatrixView& panel, const WeightSpec& spec, const DeviceAmax& amax, const QuantSpan& out,
                const QuantizeOutputs& outputs, const Stream& stream);

// Maximum number of multipliers of a search per block, row or tile; tensor_losses takes any number.
inline constexpr int most_multipliers = 256;

// losses[i] += squared error of fake quantization with *search * multipliers[i], in double on the device, in the row
// order of kernels/quantize.h. `scratch` has tensor_losses_scratch() doubles.
int64_t tensor_losses_scratch(int64_t rows, int64_t multipliers);
Status tensor_losses(const MatrixView& panel, const WeightSpec& spec, const float* search,
                     std::span<const float> multipliers, double* losses, double* scratch, const Stream& stream);

// Compares `panel` with its source weights. Reads panel.tensor_scale on the host. Adds to *stats and writes
// rows[panel.rows].
Status measure(const MatrixView& weights, const QuantView& panel, DeviceStats* stats, RowSums* rows,
               const Stream& stream);
// Adds the results of quantize and measure for `panel` (its pointers are not read) on the host, like measure() of
// kernels/quantize.h: sums row by row.
void add_stats(const DeviceStats& found, std::span<const RowSums> rows, const QuantView& panel, QuantStats& stats);

// How the inputs of a linear are quantized at run time.
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
    bool swizzled = false;  // writes block scales in the 128 x 4 layout of formats/swizzle.h with zero padding
};
Status quantize_activations(const MatrixView& x, Activations kind, const float* input_scale,
                            const ActivationOutput& out, const Stream& stream);

// NVFP4 as used in training (formats/stochastic.h). `rotate` transforms every block of 16 by hadamard16(signs).
// `stochastic` rounds element i (row-major) with stream.bits16(i). *tensor_scale is given, as for activations; a
// rotated block may exceed its source maximum by up to 4 times and then saturates.
struct TrainingRounding {
    bool rotate = false, stochastic = false;
    uint32_t signs = 0;  // low 16 bits
    PhiloxStream stream;
};
Status quantize_training(const MatrixView& x, const float* tensor_scale, const TrainingRounding& rounding,
                         const ActivationOutput& out, const Stream& stream);

// Decodes codes to values; out_dtype is bf16 (rounded to nearest) or f32. `tensor_scale` is in device memory; null: 1.
Status decode(const QuantView& panel, const float* tensor_scale, DType out_dtype, std::byte* out, const Stream& stream);

// Converts row-major block scales [rows, cols] to the 128 x 4 layout of formats/swizzle.h with zero padding.
Status swizzle(const uint8_t* scales, int64_t rows, int64_t cols, uint8_t* out, const Stream& stream);

}  // namespace nibble::cuda
