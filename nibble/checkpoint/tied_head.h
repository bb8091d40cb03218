// An output head in the files of a model whose config.json ties the head to the embedding: tuning tools and saved
// quantized models leave one. transformers and vLLM use a head that differs from the embedding, so nibble does, too.
#pragma once

#include "checkpoint/checkpoint.h"

namespace nibble {

struct StoredHead {
    enum class Kind : uint8_t {
        none,       // the model is not tied, or has no matrix for the head
        copy,       // of the embedding, value by value
        different,  // another matrix
    } kind = Kind::none;
    size_t index = 0;       // in the checkpoint's tensors
    std::string note = {};  // one line for the user; empty for none
};

// Reads both matrices as far as they are equal. Error: they cannot be read.
Result<StoredHead> find_stored_head(const Checkpoint& checkpoint);

// Lets the configuration say that the head is a matrix of its own.
void untie_head(Json& config);

}  // namespace nibble
