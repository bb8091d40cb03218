// What a forward pass on a GPU works with: the device, its stream, scratch memory, and the batch as it was copied
// there.
#pragma once

#include "kernels/attention_cuda.h"
#include "kernels/elementwise_cuda.h"
#include "kernels/matmul_cuda.h"
#include "kernels/ssm_cuda.h"
#include "model/config.h"
#include "model/device_observer.h"
#include "tensor/device.h"

#include <map>
#include <tuple>
#include <vector>

namespace nibble {

// Plans of W4A16 products by (m, n, k).
class DevicePlans {
public:
    explicit DevicePlans(const DeviceInfo& device) : device_(device) {}
    Result<cuda::MatmulPlan> matmul(int64_t m, int64_t n, int64_t k, bool gated = false);
    const DeviceInfo& device() const { return device_; }

private:
    DeviceInfo device_;
    std::map<std::tuple<int64_t, int64_t, int64_t, bool>, cuda::MatmulPlan> matmul_;
};

// What a block's mixer finds of the batch on the device; null where the block has no use for it.
struct DeviceBlockBatch {
    const int64_t* slots = nullptr;  // [rows]: where keys and values of a row go
    const int32_t* table = nullptr;  // [segments, pitch]: pages
    const cuda::AttentionPlan* attention = nullptr;
    const int32_t* work = nullptr;                 // AttentionWork::words
    const cuda::MambaSegment* segments = nullptr;  // with the block's states
};

// cos and sin by position, [positions, dims / 2], on the device.
struct DeviceRotary {
    const float* cos = nullptr;
    const float* sin = nullptr;
};

struct DeviceStep {
    const Stream& stream;
    DeviceArena& scratch;
    DevicePlans& plans;
    std::byte* matmul_workspace = nullptr;  // zero between products
    int64_t matmul_workspace_bytes = 0;
    bool overlap = true;
    DeviceObserver* observer = nullptr;

    int64_t rows = 0, segments = 0;
    int32_t longest = 0;                 // rows of the longest segment
    const int32_t* tokens = nullptr;     // [rows]
    const int32_t* positions = nullptr;  // [rows]
    std::byte* pages = nullptr;          // of the pool that holds the sequences
    int64_t page_stride = 0;
    std::vector<DeviceBlockBatch> blocks;               // by BlockConfig::index
    std::vector<std::pair<Rope, DeviceRotary>> rotary;  // of every kind in the model

    // Where a mixer's first product makes its own input (DeviceMixer::norms): what it makes it of, instead of x.
    cuda::MatmulOptions::Norm norm;
    // What that product makes beside its own output.
    cuda::MatmulOptions::Side side;

    DeviceRotary rotary_of(const Rope& rope) const;
};

// Rows of a buffer that may be written in tiles of up to 128.
inline int64_t padded_rows(int64_t rows) { return (rows + 127) / 128 * 128; }

// Gives scratch memory back where the scope ends; what is queued in the step's stream still uses it in order.
class DeviceScope {
public:
    explicit DeviceScope(DeviceStep& step) : arena_(step.scratch), mark_(arena_.mark()) {}
    ~DeviceScope() { arena_.release(mark_); }
    DeviceScope(const DeviceScope&) = delete;
    DeviceScope& operator=(const DeviceScope&) = delete;

private:
    DeviceArena& arena_;
    DeviceArena::Mark mark_;
};

}  // namespace nibble
