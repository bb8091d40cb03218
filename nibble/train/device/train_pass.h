// Computes one micro-batch forward and backward on a GPU. The forward pass uses the engine's layers, part by part, so
// that intermediates can be kept. The kernels of the backward pass are in kernels/*_backward_cuda.h.
//
//   stream b   the residual stream that block b reads, BF16; always kept
//   x, rest    of a block: its normed input, and the buffers of its mixer (TrainMixerSizes::kept). They are kept, or
//              recomputed (Recompute::block). If a norm follows the mixer, `out` is the mixer's output in BF16
//
// All work is queued in one stream. Only prepare() may wait (for the copies of the micro-batch before the last one).
#pragma once

#include "kernels/sampling_row.h"
#include "model/device/batch.h"
#include "model/device/step_memory.h"
#include "tensor/time_shared_memory.h"
#include "train/device/device_cache.h"
#include "train/device/micro_batch.h"
#include "train/device/sharded_units.h"
#include "train/device/train_mixer.h"
#include "train/device/train_weights.h"
#include "train/memory_plan.h"

#include <array>

namespace nibble {

// Guards two alternating buffers in host memory: the third copy waits until the first has arrived.
class CopyGuard {
public:
    Status before() {
        auto& event = events_[count_ % 2];
        if (event) return event->synchronize();
        return Ok{};
    }
    Status after(const Stream& stream) {
        auto& event = events_[count_++ % 2];
        if (!event) {
            NIBBLE_TRY(event, Event::create_sleeping());
        }
        return event->record(stream);
    }

private:
    std::array<std::optional<Event>, 2> events_;
    size_t count_ = 0;
};

// Memory shared with rollouts, used under the name TrainPass::updates, and an arena that covers it.
struct TimeSharedActivations {
    std::shared_ptr<TimeSharedMemory> memory;  // null: activations have memory of their own
    DeviceArena* arena = nullptr;
};

class TrainPass {
public:
    // Returns the allocations of a pass as items of a memory plan. It needs the device for the plans of attention.
    static Result<std::vector<TrainMemoryPlan::Item>> sizes(const TrainWeights& weights, const TrainPassShape& shape,
                                                            const DeviceInfo& device);
    static constexpr std::string_view updates = "updates";
    // Allocates a pass. Weights, units, device, stream and the shared arena must outlive it. units: for Sharding::all,
    // else null.
    static Result<std::unique_ptr<TrainPass>> create(const TrainWeights& weights, ShardedUnits* units,
                                                     DeviceTrace& trace, const TrainPassShape& shape,
                                                     const DeviceInfo& device, const Stream& stream, ThreadPool& pool,
                                                     const TimeSharedActivations& time_shared = {});

    // Sets the micro-batch of the next calls and copies the arrays that kernels read.
    Status prepare(const MicroBatch& m);
    // Computes embedding and all blocks. `keep`: keeps intermediates for backward().
    Status forward(bool keep);
    // Log-probabilities belong to this sampling distribution from now on; initially to the raw one.
    void draw_from(const cuda::Drawn& drawn) { drawn_ = drawn; }
    // Records and rounds K and V as this cache requires. The cache must outlive the pass.
    void cache_in(DeviceCache* cache) { cache_ = cache; }
    // Writes the log-probabilities [tokens] of all labels to device memory. Call it after forward().
    Status log_probs(float* out);
    // Sets the slopes of the loss by every label's log-probability [tokens]. The host memory may be reused at once.
    Status set_slopes(std::span<const float> slopes);
    // Writes the gradient of sum(slope * log p) to `gradient` (flat, complete; with units: the elements that this rank
    // keeps, summed over all ranks, then vectors), and log_probs as above. Call it after forward(true) and
    // set_slopes().
    Status backward(float* gradient, float* log_probs);

    // The next gradients are of the distillation loss (TeacherLoss). The teacher's head computes logits from its last
    // rows. Slopes are then weights, and losses replace log-probabilities. head null: no teacher.
    struct Teaching {
        const DeviceLinear* head = nullptr;
        const std::byte* rows = nullptr;  // [tokens, columns of the head] BF16
        float cross_entropy = 0;
    };
    void teach(const Teaching& teaching) { teaching_ = teaching; }

private:
    struct Kind {  // blocks of equal cache shape, heads and window share work lists and pages
        size_t layer = 0;
        std::unique_ptr<KvPool> pool;
        int64_t pool_tokens = 0, pool_sequences = 0;
        DeviceBatch batch;
        std::optional<DeviceStep> step;
    };
    struct Kept {  // buffers of a block
        std::byte* stream = nullptr;
        std::byte* x = nullptr;
        std::vector<std::byte*> rest;
        std::byte* out = nullptr;  // if a norm follows the mixer
    };
    TrainPass(const TrainWeights& weights, ShardedUnits* units, DeviceTrace& trace, const TrainPassShape& shape,
              const DeviceInfo& device, const Stream& stream, Workspace host)
        : weights_(weights),
          units_(units),
          trace_(trace),
          shape_(shape),
          device_(device),
          stream_(stream),
          host_(std::move(host)),
          memory_(device_, stream_),
          plans_(device_) {}

    Status allocate(const TimeSharedActivations& time_shared);
    Status fill_kind(Kind& kind, const Batch& texts);
    DeviceStep& step_of(size_t block) { return *kinds_[kind_of_[block]].step; }
    int64_t hidden() const { return weights_.config().hidden; }

    // Calls around the work of a part (flat_parts()).
    Status enter(size_t part, bool back) { return units_ ? units_->enter(part, back) : Status(Ok{}); }
    Status leave(size_t part, bool back) { return units_ ? units_->leave(part, back) : Status(Ok{}); }
    // Returns the destination of the part's gradient; `gradient`: base of the flat arrays.
    Result<float*> gradient_of(size_t part, float* gradient) {
        return units_ ? units_->gradient(part) : Result<float*>(gradient);
    }
    Status leave_gradient(size_t part) {
        if (!units_) return Ok{};
        NIBBLE_CHECK(units_->leave(part, true));
        return units_->reduce(part);
    }
    Status mark(std::string_view name, int64_t number = -1) {
        return trace_.mark(DeviceTrace::compute, name, number, stream_);
    }
    TrainWork work_of(DeviceStep& step, size_t part, float* of_vectors = nullptr);
    TrainWork work_of(size_t block, bool back, float* of_vectors = nullptr);
    // Returns the buffer of a mixer's output; keep: the backward pass reads it.
    std::byte* output_of(size_t block, bool keep) { return keep && kept_[block].out ? kept_[block].out : y_; }
    bool keeps(bool keep) const {
        return keep && shape_.recompute != Recompute::block;
    }  // returns true if a forward pass keeps the value
    // block_forward() computes a block's mixer from its normed input; y false: no output is needed. Without `keep` it
    // writes no buffers that only backward() reads. amax_for() returns a zeroed place for the largest magnitude of x,
    // which the norm before the mixer writes; null: not needed.
    Result<float*> amax_for(size_t block) const;
    Status block_forward(size_t block, bool keep, bool y, const float* amax = nullptr);
    // Computes the gradient of the residual stream through a block: d_stream_ += ..., and dy_ is its rounded value.
    Status block_backward(size_t block, float* gradient, float* of_vectors);
    // Computes logits in slabs and log-probabilities; with `gradient` also the backward pass to normed_, whose gradient
    // goes to dx_.
    Status head(float* log_probs, float* gradient, float* of_vectors);

    const TrainWeights& weights_;
    ShardedUnits* units_;  // null: all weights are on this GPU
    DeviceTrace& trace_;
    TrainPassShape shape_;
    const DeviceInfo& device_;
    const Stream& stream_;
    Workspace host_;
    DeviceStepMemory memory_;
    std::optional<DeviceArena> own_memory_;
    std::optional<TimeSharedPart> part_of_memory_;  // replaces own_memory_
    DeviceArena* kept_memory_ = nullptr;
    std::vector<Kind> kinds_;
    std::vector<size_t> kind_of_;  // by block
    std::vector<Kept> kept_;       // by block; with Recompute::block all buffers but the stream share memory
    std::byte* last_stream_ = nullptr;
    std::byte* normed_ = nullptr;  // input of the head
    float* amax_ = nullptr;        // maximum of a mixer's x, if it reads that
    std::byte* y_ = nullptr;       // [tokens, hidden] BF16: output of a mixer
    float* d_stream_ = nullptr;    // [tokens, hidden]
    std::byte* dy_ = nullptr;      // [tokens, hidden] BF16: d_stream_ rounded, or the gradient of a norm after a mixer
    std::byte* dx_ = nullptr;      // [tokens, hidden] BF16
    std::byte* workspace_ = nullptr;
    BackPlans plans_;
    cuda::Drawn drawn_;
    DeviceCache* cache_ = nullptr;
    Teaching teaching_;

    // These describe the current micro-batch.
    int64_t tokens_ = 0;
    DeviceUpload upload_, slope_upload_;
    CopyGuard copied_, slopes_copied_;
    int64_t segments_ = 0, labels_ = 0, slopes_ = 0, first_ = 0, ids_ = 0, begin_ = 0, order_ = 0, unique_ = 0;
};

}  // namespace nibble
