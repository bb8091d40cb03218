// Copies tensors of a checkpoint to memory so that its files may change.
#pragma once

#include "checkpoint/checkpoint.h"

namespace nibble {

// An additional interface of checkpoints that map files.
class HoldsTensors {
public:
    virtual ~HoldsTensors() = default;
    virtual Status hold(size_t index) const = 0;
};

// Copies a tensor that is read from a mapped file into memory. Later reads return the current values, even if the file
// changes. Error: too little memory.
inline Status hold_tensor(const Checkpoint& checkpoint, size_t index) {
    const auto* const holds = dynamic_cast<const HoldsTensors*>(&checkpoint);
    return holds ? holds->hold(index) : Status(Ok{});
}

}  // namespace nibble
