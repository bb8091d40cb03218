// The canonical form of a quantized matrix, independent of the file format.
//
//   codes         4-bit formats: [rows, cols/2] bytes, even column in the low nibble; 8-bit formats: [rows, cols]
//   block_scales  [rows, cols/block] bytes, row-major, not swizzled: E4M3 (NVFP4) or E8M0 (MX)
//   float_scales  fp8_row: [rows]; fp8_block128: [ceil(rows/128), ceil(cols/128)] row-major; int4: [rows, cols/128]
//   tensor_scale  nvfp4*, fp8: multiplies on decode; 1 elsewhere
//
// formats/ defines the meaning of the bytes. kernels/quantize.h encodes, decodes and measures them.
#pragma once

#include "formats/format.h"

#include <cstdint>
#include <vector>

namespace nibble {

// Rows of a quantized matrix, read-only or writable. A panel of fp8_block128 starts at a multiple of 128 rows.
template <class Byte, class Float>
struct BasicQuantView {
    Format format = Format::none;
    int64_t rows = 0, cols = 0;
    Byte* codes = nullptr;
    Byte* block_scales = nullptr;
    Float* float_scales = nullptr;
    float tensor_scale = 1.0f;

    BasicQuantView panel(int64_t begin, int64_t count) const {
        BasicQuantView p = *this;
        p.rows = count;
        if (codes) p.codes += code_bytes(format, begin, cols);
        if (block_scales) p.block_scales += block_scale_bytes(format, begin, cols);
        if (float_scales) p.float_scales += float_scale_count(format, begin, cols);
        return p;
    }
    operator BasicQuantView<const uint8_t, const float>() const {
        return {format, rows, cols, codes, block_scales, float_scales, tensor_scale};
    }
};
using QuantView = BasicQuantView<const uint8_t, const float>;
using QuantSpan = BasicQuantView<uint8_t, float>;

struct QuantMatrix {
    Format format = Format::none;
    int64_t rows = 0, cols = 0;
    std::vector<uint8_t> codes, block_scales;
    std::vector<float> float_scales;
    float tensor_scale = 1.0f;

    QuantMatrix() = default;
    QuantMatrix(Format f, int64_t r, int64_t c)
        : format(f),
          rows(r),
          cols(c),
          codes(size_t(code_bytes(f, r, c))),
          block_scales(size_t(block_scale_bytes(f, r, c))),
          float_scales(size_t(float_scale_count(f, r, c))) {}

    QuantView view() const {
        return {format, rows, cols, codes.data(), block_scales.data(), float_scales.data(), tensor_scale};
    }
    QuantSpan span() {
        return {format, rows, cols, codes.data(), block_scales.data(), float_scales.data(), tensor_scale};
    }
};

}  // namespace nibble
