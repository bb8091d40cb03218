// Kernels called by the host side of kernels/cuda/: one function per family of kernels. Callers check the arguments.
// Pointers are device pointers, 16-byte aligned. Functions return the result of the launch.
#pragma once

#include "base/dtype.h"
#include "base/philox.h"
#include "formats/arithmetic.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace nibble::cuda {

struct DeviceScan;
struct DeviceStats;
struct RowSums;

struct Input {
    const uint8_t* data = nullptr;
    int64_t rows = 0, cols = 0;
    bool f32 = false;   // FP32, else BF16
    bool kept = false;  // encodes FP32 unchanged instead of rounding it to BF16

    int64_t elements() const { return rows * cols; }
};

cudaError_t launch_reset_scan(DeviceScan* scan, cudaStream_t stream);
cudaError_t launch_scan(const Input& in, int64_t first_element, DeviceScan* scan, cudaStream_t stream);

// The destination of a matrix's block scales.
struct ScaleTarget {
    uint8_t* scales = nullptr;
    bool swizzled = false;  // the 128 x 4 layout (padding is not written), else row-major
};

// NVFP4. Scales follow from *store_amax (and *search_amax in searches), or from the tensor scale given_scale if it is
// set.
struct Nvfp4Args {
    uint8_t* codes = nullptr;
    ScaleTarget target;
    const float* search_amax = nullptr;
    const float* store_amax = nullptr;
    const float* given_scale = nullptr;
    float* tensor_scale = nullptr;         // out, may be null
    unsigned long long* raised = nullptr;  // added to, may be null
    float normalization = 448.0f;
    Arithmetic arithmetic = Arithmetic::reciprocal;
    bool kept = false;  // see Input::kept
};

cudaError_t launch_nvfp4_dynamic(const Input& in, const Nvfp4Args& args, int block, cudaStream_t stream);
cudaError_t launch_nvfp4_static(const Input& in, const Nvfp4Args& args, cudaStream_t stream);

// Candidates of a search, ascending, passed as a kernel argument.
struct Multipliers {
    static constexpr int most = 256;
    int count = 0;
    float value[most] = {};
};

cudaError_t launch_nvfp4_multipliers(const Input& in, const Nvfp4Args& args, const Multipliers& multipliers,
                                     cudaStream_t stream);
cudaError_t launch_nvfp4_sweep(const Input& in, const Nvfp4Args& args, cudaStream_t stream);

// Rotates blocks by hadamard16 first; rounds codes stochastically with stream.bits16(element index).
struct Training {
    bool rotate = false, stochastic = false;
    uint32_t signs = 0;
    PhiloxStream stream;
};
cudaError_t launch_nvfp4_training(const Input& in, const Nvfp4Args& args, const Training& training,
                                  cudaStream_t stream);

// FP8 weights. Per tensor: *store_amax determines scale and divisor. Tiles: *store_amax, if any, is the minimum of a
// tile's maximum. Rows and tiles: writes scales[] in the order of QuantMatrix; multipliers.count > 0 searches.
struct Fp8QuantizeArgs {
    uint8_t* codes = nullptr;
    float* scales = nullptr;
    const float* store_amax = nullptr;
    float* tensor_scale = nullptr;         // out, may be null
    unsigned long long* raised = nullptr;  // added to, may be null
    Arithmetic arithmetic = Arithmetic::reciprocal;
    DType weights = DType::bf16;  // see WeightSpec::weights; BF16 data: BF16
};

cudaError_t launch_fp8_tensor(const Input& in, const Fp8QuantizeArgs& args, cudaStream_t stream);
cudaError_t launch_fp8_rows(const Input& in, const Fp8QuantizeArgs& args, const Multipliers& multipliers,
                            cudaStream_t stream);
cudaError_t launch_fp8_tiles(const Input& in, const Fp8QuantizeArgs& args, const Multipliers& multipliers,
                             cudaStream_t stream);
// Without a search; cols is a multiple of 16.
cudaError_t launch_fp8_rows_plain(const Input& in, const Fp8QuantizeArgs& args, cudaStream_t stream);
cudaError_t launch_fp8_tiles_plain(const Input& in, const Fp8QuantizeArgs& args, cudaStream_t stream);
// One scale per 128 consecutive inputs, [rows, cols / 128].
cudaError_t launch_fp8_groups(const Input& in, const Fp8QuantizeArgs& args, cudaStream_t stream);

// The rules of formats/mx.h. MXFP8 has one rule for weights and inputs.
enum class MxRule : uint8_t { mxfp4, mxfp4_inputs, mxfp8 };
cudaError_t launch_mx(const Input& in, MxRule rule, uint8_t* codes, const ScaleTarget& target, cudaStream_t stream);

// Decodes to values [rows, cols] in BF16 or FP32 from any format; arguments as in QuantView.
struct DecodeArgs {
    const uint8_t* codes = nullptr;
    const uint8_t* block_scales = nullptr;
    const float* float_scales = nullptr;
    const float* tensor_scale = nullptr;
    int64_t rows = 0, cols = 0;
    int code_bits = 4, block = 16;
    bool e8m0 = false, per_row = false, per_tile = false;
};
cudaError_t launch_decode(const DecodeArgs& args, bool f32_out, void* out, cudaStream_t stream);

// Losses of `in` with these codes, like measure() of kernels/quantize.h. The tensor scale is a host value.
struct MeasureArgs {
    const uint8_t* codes = nullptr;
    const uint8_t* block_scales = nullptr;
    const float* float_scales = nullptr;
    float tensor_scale = 1.0f;
    int64_t rows = 0, cols = 0;
    int code_bits = 4, block = 16;
    bool e8m0 = false, per_row = false, per_tile = false;
};
cudaError_t launch_measure(const Input& in, const MeasureArgs& args, DeviceStats* stats, RowSums* rows,
                           cudaStream_t stream);

cudaError_t launch_swizzle(const uint8_t* scales, int64_t rows, int64_t cols, uint8_t* out, cudaStream_t stream);

// Losses of fake quantization with *search_amax * multipliers, like tensor_losses() of kernels/quantize.h: writes row
// totals to scratch[rows][multipliers.count], then adds them to losses[] in row order.
cudaError_t launch_tensor_losses(const Input& in, bool fp8, const float* search_amax, const Multipliers& multipliers,
                                 Arithmetic arithmetic, double* scratch, double* losses, cudaStream_t stream);

}  // namespace nibble::cuda
