// Decoding of GGUF tensors by type; ggml_blocks.h has the block formats.
#pragma once

#include "base/error.h"
#include "base/ggml_type.h"
#include "base/mapped_file.h"

#include <cstdint>

namespace nibble {

// Returns true if ggml_dequantize knows the type: F32, F16, BF16, F64, Q4_0 .. Q8_0, Q2_K .. Q6_K, MXFP4, NVFP4.
bool ggml_can_dequantize(GgmlType type);

// Decodes n elements (whole blocks) to FP32; F64 rounds to nearest. Errors: a type without a decoder, n that is not a
// multiple of the block, a size of `blocks` that does not match n, a tensor scale for a type other than NVFP4.
Status ggml_dequantize(GgmlType type, Bytes blocks, float* out, int64_t n, float tensor_scale = 1.0f);

}  // namespace nibble
