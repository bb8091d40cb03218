// Copies a batch to the device: tokens, positions, block tables, cache slots, work lists of attention and states. They
// are gathered on the host and copied at once.
#pragma once

#include "kernels/sampling_cuda.h"
#include "model/batch.h"
#include "model/device/mixer.h"
#include "model/sequence.h"

#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace nibble {

// Several arrays in one buffer, stored once on the device and twice on the host. Grows and never shrinks.
class DeviceUpload {
public:
    void clear() { bytes_.clear(); }
    // Appends an array and returns its offset on the device.
    template <class T>
    int64_t add(std::span<const T> values) {
        const size_t at = (bytes_.size() + 15) / 16 * 16;
        bytes_.resize(at + values.size_bytes());
        if (!values.empty()) std::memcpy(bytes_.data() + at, values.data(), values.size_bytes());
        return static_cast<int64_t>(at);
    }
    // Queues the copy. Two host buffers alternate, so the copy before the last one must have arrived.
    Status send(int device, const Stream& stream);
    template <class T>
    T* at(int64_t offset) const {
        return reinterpret_cast<T*>(device_.front().data + offset);
    }
    std::byte* base() const { return device_.empty() ? nullptr : device_.front().data; }

private:
    struct Buffers {
        PinnedBuffer host[2];
        DeviceArena arena;
        std::byte* data;
    };
    std::vector<std::byte> bytes_;
    std::vector<Buffers> device_;  // empty before the first send()
    size_t sends_ = 0;
};

// The sizes of a batch that the launch plans of attention depend on.
struct DeviceBatchShape {
    int64_t rows = 0, segments = 0;
    int64_t pitch = 0;        // entries per row of a block table: the largest page count of a segment, rounded up
    int64_t most_tokens = 0;  // longest sequence, rounded up
    bool operator==(const DeviceBatchShape&) const = default;
};
DeviceBatchShape shape_of(const Batch& batch);

class DeviceBatch {
public:
    // Queues the copy of a batch. `layers`: all layers or some of them, in order; layers that keep state per sequence
    // use the sequences' tables and states in the same order. `sequences` [segments]: reserved, all of one pool.
    // `requests` [wanted rows]: may be empty. `carried` [segments]: the row of the previous step that chooses the
    // segment's last token, or -1; may be empty. `first`: index of the first layer's table among the tables of a
    // sequence.
    Status make(const Batch& batch, std::span<Sequence* const> sequences, std::span<const DeviceLayer> layers,
                std::span<const TokenRequest> requests, std::span<const int64_t> carried, const DeviceInfo& device,
                const Stream& stream, int first = 0);
    // Copies the tokens that the previous step chose into the carried rows.
    Status carry(const ChosenToken* from, const Stream& stream) const;
    // Sets the members of `step` that depend on the batch. Valid until the next make().
    void describe(DeviceStep& step) const;

    const DeviceBatchShape& shape() const { return shape_; }
    int64_t attention_workspace() const;                                         // bytes of the largest workspace
    const int32_t* wanted_rows() const { return upload_.at<int32_t>(wanted_); }  // [batch.wanted()]
    int32_t* nonfinite() const { return upload_.at<int32_t>(nonfinite_); }       // [layers], initially INT32_MAX
    const cuda::SampleRow* requests() const { return upload_.at<cuda::SampleRow>(requests_); }
    bool scored() const { return scored_; }  // returns true if a request has SampleRow::scored
    cuda::SeenSlot* seen() const { return upload_.at<cuda::SeenSlot>(seen_); }
    std::byte* base() const { return upload_.base(); }

private:
    struct Attention {  // a plan for all layers with this shape of attention
        cuda::AttentionProblem like;
        cuda::AttentionPlan plan;
        int64_t work = -1;
    };
    struct Block {
        int64_t slots = -1, table = -1, segments = -1;
        int attention = -1;
        size_t place = 0;  // index in DeviceStep::blocks
    };
    Status plan_attention(std::span<const DeviceLayer> layers, const DeviceInfo& device);
    void add_requests(std::span<const TokenRequest> requests);
    void add_carried(const Batch& batch, std::span<const int64_t> carried);
    void add_pages(const Batch& batch, std::span<Sequence* const> sequences, int index, Block& block);

    DeviceUpload upload_;
    DeviceBatchShape shape_;
    std::vector<cuda::AttentionSegment> segments_;
    std::vector<Attention> attention_;
    std::optional<std::pair<DeviceBatchShape, int64_t>> planned_;  // batch shape and page stride that attention_ was
                                                                   // planned for
    std::vector<Block> blocks_;
    int64_t tokens_ = 0, positions_ = 0, wanted_ = 0, nonfinite_ = 0, requests_ = 0, seen_ = 0;
    int64_t carried_ = 0, carried_count_ = 0;
    int32_t longest_ = 0;
    bool scored_ = false;
    std::byte* pages_ = nullptr;
    int64_t page_stride_ = 0;
};

}  // namespace nibble
