// Decodes quantized matrices to BF16: code times scale in FP32 (block scale times tensor scale first), rounded once.
// Converts plain tensors from one dtype to another.
#pragma once

#include "checkpoint/checkpoint.h"
#include "tensor/matrix.h"
#include "tensor/quant_matrix.h"

#include <cstdint>
#include <span>

namespace nibble {

// Writes `out`: rows * cols BF16 values. A panel of fp8_block128 must start at a multiple of 128 rows.
void decode_bf16(const QuantView& panel, std::span<uint16_t> out);

// Returns true if plain tensors are rounded to BF16 (except a few that stay F32), whatever the file stores. True for
// GGUF: llama.cpp writes norms as F32 even for BF16 models, so the file does not show the model's dtype.
inline bool rounds_plain(Dialect dialect) { return dialect == Dialect::gguf; }

// Converts BF16, F16 or F32 values to BF16 or F32 (widened, or rounded once). Values of other dtypes, or that have the
// dtype already, are returned unchanged. The result refers to `scratch` or to the data of `plain`.
MatrixView plain_as(const MatrixView& plain, DType dtype, Matrix& scratch);

}  // namespace nibble
