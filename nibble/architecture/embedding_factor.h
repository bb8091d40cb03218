// The factor of embeddings in BF16 and FP32 runs.
#pragma once

#include "architecture/model_config.h"
#include "formats/minifloat.h"

#include <cmath>

namespace nibble {

// Returns the root of the width with which Gemma multiplies embeddings. As in transformers, the factor has the dtype of
// the embeddings: only BF16 runs round it.
inline float width_factor(int64_t width, bool bf16) {
    const auto root = static_cast<float>(std::sqrt(static_cast<double>(width)));
    return bf16 ? round_to_bf16(root) : root;
}

// Returns the factor of the model's embeddings. ModelConfig holds that of BF16 runs.
inline float embedding_factor(const ModelConfig& model, bool bf16) {
    const bool root = model.embedding_scale == width_factor(model.hidden, true);
    return root ? width_factor(model.hidden, bf16) : model.embedding_scale;
}

}  // namespace nibble
