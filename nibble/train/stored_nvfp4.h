// Converts an NVFP4 operand of training to the form of checkpoints and of the engine.
#pragma once

#include "formats/minifloat.h"
#include "tensor/quant_matrix.h"
#include "train/train_cast.h"

namespace nibble {

// Writes rows [first, first + m.rows) of an NVFP4 operand to `m`. The tensor scale is fl(amax * fl(1 / divisor)) of the
// whole operand.
inline void store_nvfp4(const CastOperand& o, int64_t first, QuantMatrix& m) {
    const int64_t blocks = m.cols / 16;
    for (int64_t r = 0; r < m.rows; ++r)
        for (int64_t b = 0; b < blocks; ++b) {
            const uint8_t code = o.scale_codes[static_cast<size_t>((first + r) * blocks + b)];
            const float scale = e4m3_to_float(code);
            // Readers require a scale above 0, also for blocks of zeros.
            m.block_scales[static_cast<size_t>(r * blocks + b)] = scale > 0 ? code : e4m3_from_float(1.0f);
            for (int64_t i = 0; i < 16; i += 2) {
                const int64_t c = b * 16 + i;
                const float* x = o.values.data() + (first + r) * o.cols + c;
                const auto of = [&](float v) { return scale > 0 ? e2m1_from_float(v / scale) : uint8_t{0}; };
                m.codes[static_cast<size_t>((r * m.cols + c) / 2)] = static_cast<uint8_t>(of(x[0]) | of(x[1]) << 4);
            }
        }
    const float scale = o.scale[0] * (1.0f / o.divisor);
    m.tensor_scale = scale > 0 ? scale : 1.0f;
}

}  // namespace nibble
