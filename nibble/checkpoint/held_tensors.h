// Tensors of a checkpoint that are kept in memory while its files may change.
#pragma once

#include "checkpoint/checkpoint.h"

namespace nibble {

// What a checkpoint over mapped files also is.
class HoldsTensors {
public:
    virtual ~HoldsTensors() = default;
    virtual Status hold(size_t index) const = 0;
};

// Copies a tensor into memory, where it lies in a mapped file: it is then read as it is now, whatever becomes of the
// file. Error: no memory.
inline Status hold_tensor(const Checkpoint& checkpoint, size_t index) {
    const auto* const holds = dynamic_cast<const HoldsTensors*>(&checkpoint);
    return holds ? holds->hold(index) : Status(Ok{});
}

}  // namespace nibble
