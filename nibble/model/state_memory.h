// The memory for pages of K and V and for recurrent states: one allocation on the host or on a GPU. KvPool decides what
// is stored where.
#pragma once

#include "base/error.h"

#include <cstddef>
#include <cstdint>
#include <memory>

namespace nibble {

class StateMemory {
public:
    static constexpr int64_t alignment = 64;

    virtual ~StateMemory() = default;
    // Aligned; all zero after construction.
    virtual std::byte* base() const = 0;
    // Ordered with the work of the model that uses the memory (on a GPU: in its stream).
    virtual Status zero(std::byte* at, int64_t bytes) = 0;
    virtual Status copy(std::byte* to, const std::byte* from, int64_t bytes) = 0;
    // Gives the physical memory back to the system until it is written again. Afterwards the contents are zero. Memory
    // of a GPU stays allocated.
    virtual void forget() {}
};

// Allocates host memory. Error: the system refuses this many bytes.
Result<std::unique_ptr<StateMemory>> host_state_memory(int64_t bytes);

}  // namespace nibble
