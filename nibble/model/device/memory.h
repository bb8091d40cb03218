// Memory of a GPU for what sequences keep, and tables that grow with the longest of them.
#pragma once

#include "architecture/model_config.h"
#include "model/cpu/workspace.h"
#include "model/device/step.h"
#include "model/state_memory.h"
#include "tensor/device.h"
#include "tensor/lent_memory.h"

#include <optional>
#include <utility>
#include <vector>

namespace nibble {

// The stream outlives the memory.
Result<std::unique_ptr<StateMemory>> device_state_memory(int64_t bytes, int device, const Stream& stream);
// In device memory that others have in turn; all zero whenever the turn begins, which is whose business gives the turn.
std::unique_ptr<StateMemory> lent_state_memory(MemoryLoan loan, const Stream& stream);

// cos and sin of every rotary embedding of a model, by position.
class DeviceRotaryTables {
public:
    void add(const Rope& rope);  // once per kind
    // Tables for positions below `positions`. Makes them anew when they are too short; then waits for the stream.
    Status reserve(int64_t positions, Workspace& host, int device, const Stream& stream);
    const std::vector<std::pair<Rope, DeviceRotary>>& tables() const { return tables_; }

private:
    std::vector<std::pair<Rope, DeviceRotary>> tables_;
    std::optional<DeviceArena> memory_;
    int64_t positions_ = 0;
};

}  // namespace nibble
