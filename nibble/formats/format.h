// The one spelling of a number format, from file to command line.
#pragma once

#include "base/checked.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace nibble {

enum class Format : uint8_t {
    none,          // stays as it is in the source
    fp8,           // E4M3, one FP32 scale per tensor
    fp8_row,       // E4M3, one FP32 scale per output row
    fp8_block128,  // E4M3, one FP32 scale per 128 x 128 tile
    mxfp8,         // E4M3, E8M0 scale per 32 inputs
    mxfp4,         // E2M1, E8M0 scale per 32 inputs
    nvfp4,         // E2M1, E4M3 scale per 16 inputs, FP32 scale per tensor
    nvfp4_bs32,    // the same with blocks of 32 (Model Optimizer's nvfp4_bs32)
};

std::string_view format_name(Format format);
std::optional<Format> format_from_name(std::string_view name);
std::span<const Format> all_formats();  // without `none`

// Everything that follows from the format alone, for a matrix [rows, cols].
struct FormatLayout {
    int code_bits = 0;          // 4 or 8
    int block = 0;              // inputs per block scale; 0 when scales are not per block of one row
    bool e8m0_scales = false;   // block scales are E8M0 (else E4M3), one byte each
    bool tensor_scale = false;  // has one FP32 scale for the whole matrix
    bool float_scales = false;  // has an array of FP32 scales (rows or tiles)
};
FormatLayout format_layout(Format format);

int64_t code_bytes(Format format, int64_t rows, int64_t cols);
int64_t block_scale_bytes(Format format, int64_t rows, int64_t cols);
int64_t float_scale_count(Format format, int64_t rows, int64_t cols);
// Stored bits per weight, all scales included.
double bits_per_element(Format format, int64_t rows, int64_t cols);
// Whether a matrix with `cols` inputs can take the format at all (whole blocks).
bool format_fits(Format format, int64_t cols);

// ---- What a checkpoint says about inputs and the KV cache -------------------------------------------------------

// How the inputs of a linear are quantized when the model runs. Only `static` ones store a scale.
enum class ActivationFormat : uint8_t {
    none,          // stays BF16 (W4A16, W8A16)
    nvfp4,         // dynamic blocks of 16 under a stored input_scale
    fp8,           // per tensor, stored input_scale
    fp8_token,     // dynamic per token, nothing stored
    fp8_group128,  // dynamic per token and 128 inputs, nothing stored (the partner of fp8_block128)
    mxfp8,
    mxfp4,  // dynamic blocks of 32, nothing stored
};
std::string_view activation_name(ActivationFormat format);
std::optional<ActivationFormat> activation_from_name(std::string_view name);
bool stores_input_scale(ActivationFormat format);

// The last one is a choice of the engine alone, no checkpoint carries it: FP8 whose scales lie in the pages
// (KvType::fp8_page).
enum class KvFormat : uint8_t { none, fp8, fp8_cast, nvfp4, nvfp4_cast, fp8_page };
std::string_view kv_name(KvFormat format);
std::optional<KvFormat> kv_from_name(std::string_view name);

}  // namespace nibble
