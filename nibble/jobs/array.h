// Matrices in the memory of a caller, quantized, decoded and multiplied: the functions below the tensors of the Python
// package. Rows may lie anywhere; results are contiguous. All functions compute the same bits for any strides and any
// number of threads.
#pragma once

#include "base/error.h"
#include "base/thread_pool.h"
#include "kernels/matmul.h"
#include "kernels/quantize.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace nibble {

enum class ElementType : uint8_t { f32, f16, bf16, e4m3, e5m2 };
int64_t element_bytes(ElementType type);

// A matrix [rows, cols] that another program owns. Element (r, c) starts `r * row_bytes + c * col_bytes` bytes after
// `data`, or `offsets[r] + c * col_bytes` where there are offsets. Strides may be negative or zero.
struct ArrayRows {
    ElementType type = ElementType::f32;
    const std::byte* data = nullptr;
    int64_t rows = 0, cols = 0;
    int64_t row_bytes = 0, col_bytes = 0;
    std::span<const int64_t> offsets = {};
};

// The options of a quantization as words.
struct ArrayOptions {
    std::string format = "nvfp4";
    std::string search = "max";             // search of scales: max, mse, sweep (static NVFP4)
    bool four_over_six = false;             // NVFP4: blocks may be scaled up by 1.5; static scales
    bool static_scales = false;             // NVFP4: rules of calibrated block maxima; a search sets it
    std::string arithmetic = "reciprocal";  // arithmetic of scales, as in QuantizeOptions::arithmetic
    std::optional<float> amax;              // largest magnitude of the tensor; none: computed from x
    std::optional<uint64_t> key;            // rounds 4-bit codes stochastically; none: to nearest
    std::optional<uint32_t> rotation;       // signs of a 16-point Hadamard transform along the rows, bit i: element i
};

// The same as values, checked.
struct ArraySpec {
    WeightSpec weights;
    std::optional<float> amax;
    std::optional<uint64_t> key;
    std::optional<uint32_t> rotation;
};
// Errors of kind usage: unknown words, combinations without a meaning.
Result<ArraySpec> array_spec(const ArrayOptions& options, ElementType type);

// Quantizes x into `out`, whose format, rows and cols are set and whose buffers have the sizes of formats/format.h;
// sets out.tensor_scale. `pool` may be null. Stochastic codes use bits16(r * cols + c) of PhiloxStream{key, 0}
// (formats/stochastic.h). A rotated matrix is rounded to BF16 before it is quantized. Errors of kind shape: incomplete
// blocks, a value that is not finite.
Status quantize_array(const ArrayRows& x, const ArraySpec& spec, QuantSpan& out, ThreadPool* pool);

// Decodes to out [rows, cols], contiguous, in F32, BF16 or F16. Error of kind usage: another type.
Status dequantize_array(const QuantView& q, ElementType type, void* out, ThreadPool* pool);

// Writes x as F32 [rows, cols], contiguous.
void read_array(const ArrayRows& x, int64_t begin, int64_t count, float* out);

// FP8 codes with an FP32 scale per `tile_rows` x 128 elements (1 or 128), decoded to F32 [rows, cols].
void decode_tiles(const ArrayRows& codes, const float* scales, int64_t tile_rows, float* out);

// How the left operand of a product is quantized, as MatmulInput in kernels/matmul.h.
struct ArrayInputs {
    ActivationFormat format = ActivationFormat::none;
    float scale = 1.0f;
};
// out [x.rows, w.rows()] = x w^T + bias, in F32, BF16 or F16. x is read as F32. The sums have the order `lanes` of
// kernels/matmul.h. Errors of kind shape: x.cols is not w.cols(), or does not divide into the blocks of `inputs`.
Status multiply_array(const ArrayRows& x, const PackedMatrix& w, const float* bias, const ArrayInputs& inputs,
                      ElementType type, void* out, ThreadPool& pool);

// Swizzles block scales [rows, cols] to the 128 x 4 layout, or the other way (formats/swizzle.h).
void swizzle_array(const uint8_t* scales, int64_t rows, int64_t cols, uint8_t* out);
void unswizzle_array(const uint8_t* swizzled, int64_t rows, int64_t cols, uint8_t* out);

// Packs 4-bit codes, one a byte (values above 15 lose their high bits), to two a byte, the even element in the low
// half, or the other way. `count` codes; pack: count is even.
void pack_codes(const uint8_t* codes, int64_t count, uint8_t* out);
void unpack_codes(const uint8_t* packed, int64_t count, uint8_t* out);

}  // namespace nibble
