// GPU memory for the state of sequences, and rotary tables that grow with the longest sequence.
#pragma once

#include "architecture/model_config.h"
#include "model/cpu/workspace.h"
#include "model/device/step.h"
#include "model/state_memory.h"
#include "tensor/device.h"
#include "tensor/time_shared_memory.h"

#include <optional>
#include <utility>
#include <vector>

namespace nibble {

// Allocates `bytes` on the device. The stream must outlive the memory. Error: too little free memory.
Result<std::unique_ptr<StateMemory>> device_state_memory(int64_t bytes, int device, const Stream& stream);
// Wraps device memory that is shared with another user. It must be zeroed each time this user acquires it.
std::unique_ptr<StateMemory> time_shared_state_memory(TimeSharedPart part, const Stream& stream);

// cos and sin by position of every rotary embedding of a model.
class DeviceRotaryTables {
public:
    void add(const Rope& rope);  // call once per kind of embedding
    // Provides tables for positions below `positions`. If they are too short, waits for the stream and allocates new
    // ones.
    Status reserve(int64_t positions, Workspace& host, int device, const Stream& stream);
    const std::vector<std::pair<Rope, DeviceRotary>>& tables() const { return tables_; }

private:
    std::vector<std::pair<Rope, DeviceRotary>> tables_;
    std::optional<DeviceArena> memory_;
    int64_t positions_ = 0;
};

}  // namespace nibble
