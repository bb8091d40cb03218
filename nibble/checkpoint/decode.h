// Quantized matrices back to BF16: code times scale in FP32 (block and tensor scale multiplied first), rounded once.
#pragma once

#include "tensor/quant_matrix.h"

#include <cstdint>
#include <span>

namespace nibble {

// `out` holds rows * cols BF16 codes. A panel of fp8_block128 starts at a multiple of 128 rows.
void decode_bf16(const QuantView& panel, std::span<uint16_t> out);

}  // namespace nibble
