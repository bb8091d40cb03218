// The 128 x 4 scale layout that Blackwell's block-scaled matrix instructions read (PTX ISA, tcgen05 scale factors;
// cuBLASLt "VEC16_UE4M3"). A matrix of block scales [rows, cols] is padded to multiples of 128 x 4 and cut into tiles
// of 512 bytes, tiles row-major; inside a tile the scale of row r, column c lies at (r % 32) * 16 + (r / 32) * 4 + c.
// nibble's own files hold scales row-major and unswizzled; kernels and some engines need this layout.
#pragma once

#include "base/host_device.h"

#include <cstdint>

namespace nibble {

// Size of the swizzled form in bytes, including padding.
NIBBLE_HD constexpr int64_t swizzled_scale_bytes(int64_t rows, int64_t cols) {
    return (rows + 127) / 128 * 128 * ((cols + 3) / 4 * 4);
}

NIBBLE_HD constexpr int64_t swizzled_scale_offset(int64_t row, int64_t col, int64_t cols) {
    const int64_t tiles_across = (cols + 3) / 4;
    const int64_t tile = row / 128 * tiles_across + col / 4;
    const int64_t r = row % 128, c = col % 4;
    return tile * 512 + r % 32 * 16 + r / 32 * 4 + c;
}

// `dst` holds swizzled_scale_bytes(rows, cols) bytes. Padding is set to zero.
constexpr void swizzle_scales(const uint8_t* src, int64_t rows, int64_t cols, uint8_t* dst) {
    for (int64_t i = 0; i < swizzled_scale_bytes(rows, cols); ++i) dst[i] = 0;
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < cols; ++c) dst[swizzled_scale_offset(r, c, cols)] = src[r * cols + c];
}

}  // namespace nibble
