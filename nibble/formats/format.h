// Number formats of weights, activations and the KV cache. Their names are the same in files, recipes and flags.
#pragma once

#include "base/checked.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace nibble {

enum class Format : uint8_t {
    none,          // keeps the dtype of the source
    fp8,           // E4M3, one FP32 scale per tensor
    fp8_row,       // E4M3, one FP32 scale per output row
    fp8_block128,  // E4M3, one FP32 scale per 128 x 128 tile
    mxfp8,         // E4M3, E8M0 scale per 32 inputs
    mxfp4,         // E2M1, E8M0 scale per 32 inputs
    nvfp4,         // E2M1, E4M3 scale per 16 inputs, FP32 scale per tensor
    nvfp4_bs32,    // NVFP4 with blocks of 32 inputs (Model Optimizer's nvfp4_bs32)
    int4,          // integers of 4 bits, BF16 scale per 128 inputs (compressed-tensors' W4A16)
};

std::string_view format_name(Format format);
std::optional<Format> format_from_name(std::string_view name);
std::span<const Format> all_formats();  // without `none`

// Properties of a format. Sizes below are those of a matrix [rows, cols].
struct FormatLayout {
    int code_bits = 0;          // 4 or 8
    int block = 0;              // inputs per block scale; 0: no scales per block of one row
    bool e8m0_scales = false;   // block scales are E8M0 (else E4M3), one byte each
    bool tensor_scale = false;  // one FP32 scale for the whole matrix
    bool float_scales = false;  // an array of FP32 scales, per row, tile or group
    bool integers = false;      // 4-bit codes are integers (formats/int4.h), else E2M1
    int scale_rows = 0;         // rows of weights per FP32 scale
    int scale_cols = 0;         // inputs per FP32 scale; 0: all
    int scale_bytes = 4;        // stored bytes of an FP32 scale: 2 if each is a BF16 number

    // Returns the inputs that are stored as a whole: a block, or a group of integers. 0: any number.
    int whole_inputs() const { return integers ? scale_cols : block; }
    int64_t scales_per_row(int64_t cols) const { return scale_cols ? ceil_div<int64_t>(cols, scale_cols) : 1; }
    // Returns the index of the FP32 scale of an element.
    int64_t scale_index(int64_t row, int64_t col, int64_t cols) const {
        return row / scale_rows * scales_per_row(cols) + (scale_cols ? col / scale_cols : 0);
    }
};
FormatLayout format_layout(Format format);

int64_t code_bytes(Format format, int64_t rows, int64_t cols);
int64_t block_scale_bytes(Format format, int64_t rows, int64_t cols);
int64_t float_scale_count(Format format, int64_t rows, int64_t cols);
// Stored bits per weight, including all scales.
double bits_per_element(Format format, int64_t rows, int64_t cols);
// Returns true if a matrix with `cols` inputs can be stored in the format: it needs whole blocks and whole bytes.
bool format_fits(Format format, int64_t cols);

// ---- Activations and the KV cache, as checkpoints declare them ---------------------------------------------------

// How inputs of a linear are quantized at run time. Only formats with a static scale store it (stores_input_scale).
enum class ActivationFormat : uint8_t {
    none,          // stays BF16 (W4A16, W8A16)
    nvfp4,         // dynamic scales per 16 inputs under a stored input_scale
    fp8,           // one stored input_scale per tensor
    fp8_token,     // dynamic scale per token, nothing stored
    fp8_group128,  // dynamic scale per token and 128 inputs, nothing stored (used with fp8_block128)
    mxfp8,
    mxfp4,  // dynamic blocks of 32, nothing stored
};
std::string_view activation_name(ActivationFormat format);
std::optional<ActivationFormat> activation_from_name(std::string_view name);
bool stores_input_scale(ActivationFormat format);

// fp8_page is chosen by the engine; no checkpoint declares it. It is FP8 with scales stored in the pages
// (KvType::fp8_page).
enum class KvFormat : uint8_t { none, fp8, fp8_cast, nvfp4, nvfp4_cast, fp8_page };
std::string_view kv_name(KvFormat format);
std::optional<KvFormat> kv_from_name(std::string_view name);

}  // namespace nibble
