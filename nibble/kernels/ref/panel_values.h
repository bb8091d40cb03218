// Reads single elements of a packed weight.
#pragma once

#include "formats/fp8.h"
#include "formats/int4.h"
#include "formats/mx.h"
#include "formats/nvfp4.h"
#include "kernels/panels.h"

namespace nibble::ref {

// Returns the value of the code for output 32 * panel + lane and input k.
inline float packed_code(const PackedMatrix::Panels& p, int64_t panel, int64_t k, int64_t lane) {
    const int per_word = codes_per_word(p.code), bytes = word_bytes(p.code);
    uint32_t word = 0;
    std::memcpy(&word, p.panel_words(panel) + (k / per_word * panel_rows + lane) * bytes, static_cast<size_t>(bytes));
    const uint32_t code = word >> (k % per_word * (8 * bytes / per_word));
    switch (p.code) {
        case WeightCode::f32:
            return float_from_bits(word);
        case WeightCode::bf16:
            return bf16_to_float(static_cast<uint16_t>(code));
        case WeightCode::e4m3:
            return e4m3_to_float(static_cast<uint8_t>(code));
        case WeightCode::e2m1:
            return e2m1_to_float(code & 15);
        case WeightCode::int4:
            return int4_to_float(code & 15);
    }
    __builtin_unreachable();
}

// Returns the scale of the block or tile; 1 if the format has none.
inline float packed_factor(const PackedMatrix::Panels& p, int64_t panel, int64_t block, int64_t lane) {
    if (p.tile_scales.size() != 0) return p.panel_tile_scales(panel)[block * panel_rows + lane];
    if (p.block_scales.size() == 0) return 1.0f;
    const uint8_t scale = p.panel_block_scales(panel)[block * panel_rows + lane];
    return format_layout(p.format).e8m0_scales ? e8m0_to_float(scale) : packed_e4m3_scale(scale);
}

}  // namespace nibble::ref
