// An output head stored although config.json ties the head to the embedding. Fine-tuning tools and saved quantized
// models leave such tensors. transformers and vLLM use a stored head that differs from the embedding, and so does
// nibble.
#pragma once

#include "checkpoint/checkpoint.h"

namespace nibble {

struct StoredHead {
    enum class Kind : uint8_t {
        none,       // the model is not tied, or has no matrix for the head
        copy,       // equal to the embedding, value by value
        different,  // another matrix
    } kind = Kind::none;
    size_t index = 0;       // in the checkpoint's tensors
    std::string note = {};  // a line for the user; empty: none
};

// Finds the head and compares it with the embedding. Error: a matrix cannot be read.
Result<StoredHead> find_stored_head(const Checkpoint& checkpoint);

// Changes the configuration so that the head is a matrix of its own.
void untie_head(Json& config);

}  // namespace nibble
