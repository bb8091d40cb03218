// Quantized matrices back to BF16: code times scale in FP32 (block and tensor scale multiplied first), rounded once;
// and plain ones from one dtype to another.
#pragma once

#include "checkpoint/checkpoint.h"
#include "tensor/matrix.h"
#include "tensor/quant_matrix.h"

#include <cstdint>
#include <span>

namespace nibble {

// `out` holds rows * cols BF16 codes. A panel of fp8_block128 starts at a multiple of 128 rows.
void decode_bf16(const QuantView& panel, std::span<uint16_t> out);

// Whether readers round what is not quantized (to BF16 but for a few F32), whatever the file stores: of GGUF, where
// llama.cpp's norms are F32 even of a BF16 model, so that the file does not tell the model's dtype.
inline bool rounds_plain(Dialect dialect) { return dialect == Dialect::gguf; }

// BF16, F16 or F32 values as BF16 or F32: widened, or rounded once. What is in `dtype` already, or is none of these, is
// handed back. The result lives in `scratch` or where `plain` does.
MatrixView plain_as(const MatrixView& plain, DType dtype, Matrix& scratch);

}  // namespace nibble
