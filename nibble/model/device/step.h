// The state of one forward pass on a GPU. DeviceModel fills it in; every mixer (DeviceMixer) reads it and queues its
// kernels in `stream`. It has two groups of members:
//
//   memory   scratch space of the pass, the workspace of W4A16 products, the pool that holds pages of K and V
//   batch    tokens, positions, page tables and attention work lists, already copied to the device
//
// Operations fused into a product are not described here but with its input (DeviceInput). Pointers are device pointers
// unless a comment states otherwise. All work is queued; no function waits for it.
#pragma once

#include "architecture/model_config.h"
#include "kernels/attention_cuda.h"
#include "kernels/elementwise_cuda.h"
#include "kernels/ssm_cuda.h"
#include "kernels/w4a16_matmul_cuda.h"
#include "model/device/observer.h"
#include "tensor/device.h"

#include <map>
#include <tuple>
#include <vector>

namespace nibble {

// Launch plans of W4A16 products by (m, n, k, gated), made on first use and kept.
class DevicePlans {
public:
    explicit DevicePlans(const DeviceInfo& device) : device_(device) {}
    Result<cuda::MatmulPlan> matmul(int64_t m, int64_t n, int64_t k, bool gated = false);
    const DeviceInfo& device() const { return device_; }

private:
    DeviceInfo device_;
    std::map<std::tuple<int64_t, int64_t, int64_t, bool>, cuda::MatmulPlan> matmul_;
};

// The part of a batch that one block's mixer needs: attention reads slots, table, attention and work; mixers
// with recurrent states read segments. Null where the block has no use for a member.
struct DeviceBlockBatch {
    const int64_t* slots = nullptr;  // [rows]: the place of a row's K and V in the pool
    const int32_t* table = nullptr;  // [segments, pitch]: page numbers of each sequence
    const cuda::AttentionPlan* attention = nullptr;
    const int32_t* work = nullptr;                 // AttentionWork::words of that plan
    const cuda::StateSegment* segments = nullptr;  // each with pointers to this block's states
};

// Tables of the rotary embedding: cos and sin of every position, [positions, dims / 2].
struct DeviceRotary {
    const float* cos = nullptr;
    const float* sin = nullptr;
};

struct DeviceStep {
    const Stream& stream;
    DeviceArena& scratch;
    DevicePlans& plans;
    std::byte* matmul_workspace = nullptr;  // all zero between products
    int64_t matmul_workspace_bytes = 0;
    bool overlap = true;
    DeviceObserver* observer = nullptr;

    int64_t rows = 0, segments = 0;
    int32_t longest = 0;                 // rows of the longest segment
    const int32_t* tokens = nullptr;     // [rows]
    const int32_t* positions = nullptr;  // [rows]
    // BF16 [vocab, hidden], scaled: the model's embedding; null where only some blocks run.
    const std::byte* embedding = nullptr;
    std::byte* pages = nullptr;  // memory of the pool that holds the sequences
    int64_t page_stride = 0;
    std::vector<DeviceBlockBatch> blocks;               // by BlockConfig::index
    std::vector<std::pair<Rope, DeviceRotary>> rotary;  // one entry for each kind of rotary embedding in the model

    DeviceRotary rotary_of(const Rope& rope) const;
};

// Rows to allocate for a buffer that kernels write in tiles of up to 128 rows.
inline int64_t padded_rows(int64_t rows) { return (rows + 127) / 128 * 128; }

// Releases scratch memory at the end of a scope. Kernels that are queued and not yet run may still use that memory:
// later users queue in the same stream, so they run after those kernels.
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
