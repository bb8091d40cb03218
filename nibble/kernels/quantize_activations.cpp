#include "kernels/quantize_activations.h"

#include "formats/fp8.h"
#include "formats/mx.h"
#include "formats/nvfp4.h"

namespace nibble {
namespace {

int block(ActivationFormat format) {
    if (format == ActivationFormat::nvfp4) return nvfp4_block;
    return format == ActivationFormat::mxfp8 || format == ActivationFormat::mxfp4 ? mx_block : 0;
}

}  // namespace

int64_t activation_code_bytes(ActivationFormat format, int64_t cols) {
    if (format == ActivationFormat::none) return 0;
    return format == ActivationFormat::nvfp4 || format == ActivationFormat::mxfp4 ? cols / 2 : cols;
}

int64_t activation_block_scales(ActivationFormat format, int64_t cols) {
    return block(format) ? cols / block(format) : 0;
}

int64_t activation_float_scales(ActivationFormat format, int64_t cols) {
    if (format == ActivationFormat::fp8_token) return 1;
    return format == ActivationFormat::fp8_group128 ? (cols + fp8_tile - 1) / fp8_tile : 0;
}

bool activation_fits(ActivationFormat format, int64_t cols) { return !block(format) || cols % block(format) == 0; }

}  // namespace nibble
