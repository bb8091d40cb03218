// The model that encodes one piece of text as token ids: BPE or Unigram. Immutable; mutable state is in the caller's
// scratch.
#pragma once

#include "text/meter.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace nibble {

class ModelScratch {
public:
    virtual ~ModelScratch() = default;
};

class TokenModel {
public:
    virtual ~TokenModel() = default;
    virtual std::unique_ptr<ModelScratch> make_scratch() const = 0;
    // Returns whether a character without a token becomes the tokens of its bytes, where these exist.
    virtual bool encodes_bytes() const = 0;
    // Appends the ids of `piece` (valid UTF-8). `scratch` was made by this model and is used by one thread at a time.
    // Error: a limit of the meter.
    virtual Status encode(std::string_view piece, ModelScratch& scratch, Meter& meter,
                          std::vector<uint32_t>& out) const = 0;
};

}  // namespace nibble
