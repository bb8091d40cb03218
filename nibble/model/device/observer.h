// Receives the data that calibration needs from a forward pass on a GPU (on the CPU: Observer in model/cpu/block.h).
// Methods are called while the pass is being queued. Work that a method queues in the step's stream before it returns
// sees the rows as the linear reads them.
#pragma once

#include "kernels/attention_cuda.h"

#include <span>
#include <string>
#include <vector>

namespace nibble {

class DeviceObserver {
public:
    virtual ~DeviceObserver() = default;
    // Receives the input x [rows, cols] (BF16, before input quantization) of the linears with these names.
    virtual Status input(std::span<const std::string> linears, const std::byte* x, int64_t rows, int64_t cols,
                         const Stream& stream) = 0;
    // Receives the experts' inputs: rows sorted by expert; those of expert e are [begin[e], begin[e + 1]) (device
    // memory), and linears[e] are its names.
    virtual Status expert_inputs(std::span<const std::vector<std::string>> linears, const std::byte* x, int64_t rows,
                                 int64_t cols, const int32_t* begin, const Stream& stream) = 0;
    // Called when K (after the rotary embedding) and V of an attention block are in the cache, at the slots of its
    // rows.
    virtual Status kv(const std::string& prefix, const cuda::KvCache& cache, const int64_t* slots, int64_t rows,
                      const Stream& stream) = 0;
    // Returns true if a MoE passes all rows to expert_inputs() for every expert. The routing itself does not change.
    virtual bool every_expert() const { return false; }
};

}  // namespace nibble
