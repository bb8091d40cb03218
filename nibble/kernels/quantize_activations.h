// Quantization of the inputs of a linear at run time, row by row: codes and scales of ActivationFormat, the same bits
// as cuda::quantize_activations(). Maxima use the values as given; codes use values rounded to BF16 (which does not
// change BF16 inputs).
//
//   nvfp4         scale per 16: nvfp4_dynamic_scale(amax, input_scale); codes nvfp4_code(x, scale * input_scale)
//   fp8           e4m3(x / input_scale), saturating
//   fp8_token     scale fp8_scale(row's amax), true division; codes fp8_code(x, scale)
//   fp8_group128  the same per 128 values (the last group may be shorter)
//   mxfp8         mxfp8_scale per 32; codes mxfp8_code, as weights
//   mxfp4         mxfp4_input_scale per 32; codes mxfp4_input_code
#pragma once

#include "formats/format.h"

#include <cstdint>

namespace nibble {

// The outputs of one row. Outputs that the format does not have may be null.
struct ActivationRow {
    uint8_t* codes = nullptr;         // 4-bit formats: cols / 2 bytes, even column in the low nibble; else cols bytes
    uint8_t* block_scales = nullptr;  // nvfp4: cols / 16 of E4M3; mx: cols / 32 of E8M0
    float* float_scales = nullptr;    // fp8_token: one; fp8_group128: ceil(cols / 128)
};

// Sizes per row.
int64_t activation_code_bytes(ActivationFormat format, int64_t cols);
int64_t activation_block_scales(ActivationFormat format, int64_t cols);
int64_t activation_float_scales(ActivationFormat format, int64_t cols);
// Returns true if cols are whole blocks: a multiple of 16 (nvfp4) or 32 (mx).
bool activation_fits(ActivationFormat format, int64_t cols);

}  // namespace nibble
