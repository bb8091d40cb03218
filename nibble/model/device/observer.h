// Sees what calibration needs of a forward pass on a GPU (Observer of model/cpu/block.h is its twin on the CPU). Called
// while work is being queued: what it queues in the step's stream finds the rows as the linear reads them, and must be
// queued before the call returns.
#pragma once

#include "kernels/attention_cuda.h"

#include <span>
#include <string>
#include <vector>

namespace nibble {

class DeviceObserver {
public:
    virtual ~DeviceObserver() = default;
    // What the linears of these names read: x [rows, cols] BF16, before input quantization.
    virtual Status input(std::span<const std::string> linears, const std::byte* x, int64_t rows, int64_t cols,
                         const Stream& stream) = 0;
    // The same of experts: rows sorted by expert, those of expert e in [begin[e], begin[e + 1]), on the device;
    // linears[e] are expert e's.
    virtual Status expert_inputs(std::span<const std::vector<std::string>> linears, const std::byte* x, int64_t rows,
                                 int64_t cols, const int32_t* begin, const Stream& stream) = 0;
    // K (after the rotary embedding) and V of an attention block lie in the cache, at the slots of its rows.
    virtual Status kv(const std::string& prefix, const cuda::KvCache& cache, const int64_t* slots, int64_t rows,
                      const Stream& stream) = 0;
    // Whether a MoE shows every expert all rows. What flows on is routed as ever.
    virtual bool every_expert() const { return false; }
};

}  // namespace nibble
