// The memory that holds pages of K and V and recurrent states: one block, on the host or on a GPU. What is where in it
// is KvPool's business; a model only needs to know that it is memory it can compute in.
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
    // Aligned; all zero when it was made.
    virtual std::byte* base() const = 0;
    // In the order of the work of the model that uses the memory.
    virtual Status zero(std::byte* at, int64_t bytes) = 0;
    virtual Status copy(std::byte* to, const std::byte* from, int64_t bytes) = 0;
};

// Error: the system refuses that much.
Result<std::unique_ptr<StateMemory>> host_state_memory(int64_t bytes);

}  // namespace nibble
