// What turns one piece of text into token ids: BPE or Unigram. Immutable; the changing state is the caller's scratch.
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
    // Appends the ids of `piece` (valid UTF-8). `scratch` is of this model and used by one thread at a time. Errors:
    // the meter's.
    virtual Status encode(std::string_view piece, ModelScratch& scratch, Meter& meter,
                          std::vector<uint32_t>& out) const = 0;
};

}  // namespace nibble
