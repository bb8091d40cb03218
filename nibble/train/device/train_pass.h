// One micro-batch forward and back on a GPU. Forward are the engine's layers, part by part, so that what lies between
// their products can be kept; the backward pass is in kernels/*_backward_cuda.h.
//
//   stream b   the residual stream that block b reads, BF16; always kept
//   x, rest    of a block: its normed input; what its mixer keeps (TrainMixerSizes::kept). Kept, or computed again
//              (Recompute::block). A norm behind the mixer reads `out`, what the mixer gives rounded to BF16
//
// All work is queued in one stream; only prepare() may wait (for the copies of the micro-batch before last).
#pragma once

#include "kernels/sampling_row.h"
#include "model/device/batch.h"
#include "model/device/step_memory.h"
#include "tensor/lent_memory.h"
#include "train/device/device_cache.h"
#include "train/device/micro_batch.h"
#include "train/device/sharded_units.h"
#include "train/device/train_mixer.h"
#include "train/device/train_weights.h"
#include "train/memory_plan.h"

#include <array>

namespace nibble {

// Copies from host memory that is used in turns: before the third, the first must have arrived.
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

// Memory that others have in turn, as its user TrainPass::updates, and the arena that is all of it.
struct LentActivations {
    std::shared_ptr<LentMemory> memory;  // null: what is kept has memory of its own
    DeviceArena* arena = nullptr;
};

class TrainPass {
public:
    // What it allocates, as items of a memory plan. Needs the device for the plans of attention.
    static Result<std::vector<TrainMemoryPlan::Item>> sizes(const TrainWeights& weights, const TrainPassShape& shape,
                                                            const DeviceInfo& device);
    static constexpr std::string_view updates = "updates";
    // Weights, units, device, stream and the lent arena outlive it. Allocates. units: of Sharding::all, else null.
    static Result<std::unique_ptr<TrainPass>> create(const TrainWeights& weights, ShardedUnits* units,
                                                     DeviceTrace& trace, const TrainPassShape& shape,
                                                     const DeviceInfo& device, const Stream& stream, ThreadPool& pool,
                                                     const LentActivations& lent = {});

    // The micro-batch of the next calls. Copies what kernels read of it.
    Status prepare(const MicroBatch& m);
    // Embedding and all blocks; `keep`: for backward().
    Status forward(bool keep);
    // Log-probabilities are of this distribution from now on; before: of the raw one.
    void draw_from(const cuda::Drawn& drawn) { drawn_ = drawn; }
    // K and V are seen, and count as this cache has them; it outlives the pass.
    void cache_in(DeviceCache* cache) { cache_ = cache; }
    // log_probs [tokens] on the device, of all labels; after forward().
    Status log_probs(float* out);
    // Slopes of the loss by every label's log-probability [tokens], host memory that may be reused at once.
    Status set_slopes(std::span<const float> slopes);
    // The gradient of sum(slope * log p) into `gradient` (flat, all of it; with units: what this rank keeps of the sum
    // of all ranks, then vectors), and log_probs as above; after forward(true) and set_slopes().
    Status backward(float* gradient, float* log_probs);

    // The next gradients are of the loss beside a teacher (TeacherLoss), of whose last rows its head makes logits: the
    // slopes are weights then, and losses take the place of log-probabilities. head null: no teacher.
    struct Teaching {
        const DeviceLinear* head = nullptr;
        const std::byte* rows = nullptr;  // [tokens, cols of the head] BF16
        float cross_entropy = 0;
    };
    void teach(const Teaching& teaching) { teaching_ = teaching; }

private:
    struct Kind {  // of attention: blocks of equal cache shape, heads and window share work lists and pages
        size_t layer = 0;
        std::unique_ptr<KvPool> pool;
        int64_t pool_tokens = 0, pool_sequences = 0;
        DeviceBatch batch;
        std::optional<DeviceStep> step;
    };
    struct Kept {  // of a block
        std::byte* stream = nullptr;
        std::byte* x = nullptr;
        std::vector<std::byte*> rest;
        std::byte* out = nullptr;  // where a norm follows
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

    Status allocate(const LentActivations& lent);
    Status fill_kind(Kind& kind, const Batch& texts);
    DeviceStep& step_of(size_t block) { return *kinds_[kind_of_[block]].step; }
    int64_t hidden() const { return weights_.config().hidden; }

    // Around the work of a part (flat_parts()).
    Status enter(size_t part, bool back) { return units_ ? units_->enter(part, back) : Status(Ok{}); }
    Status leave(size_t part, bool back) { return units_ ? units_->leave(part, back) : Status(Ok{}); }
    // Where its gradient goes; `gradient`: of the flat arrays.
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
    // Where a mixer's output goes; keep: the way back reads it.
    std::byte* output_of(size_t block, bool keep) { return keep && kept_[block].out ? kept_[block].out : y_; }
    bool keeps(bool keep) const { return keep && shape_.recompute != Recompute::block; }  // of a forward pass
    // Mixer of a block from its normed input; `y`: wanted. Without `keep` nothing stays that only backward() reads.
    // Where the norm in front of a mixer leaves the largest magnitude of x, 0 now; null: nobody reads it.
    Result<float*> amax_for(size_t block) const;
    Status block_forward(size_t block, bool keep, bool y, const float* amax = nullptr);
    // The gradient of the stream through a block: d_stream_ += ..., and dy_ is that rounded.
    Status block_backward(size_t block, float* gradient, float* of_vectors);
    // Logits in slabs, log-probabilities; with `gradient` the way back to normed_, whose gradient goes to dx_.
    Status head(float* log_probs, float* gradient, float* of_vectors);

    const TrainWeights& weights_;
    ShardedUnits* units_;  // null: all weights are there
    DeviceTrace& trace_;
    TrainPassShape shape_;
    const DeviceInfo& device_;
    const Stream& stream_;
    Workspace host_;
    DeviceStepMemory memory_;
    std::optional<DeviceArena> own_memory_;
    std::optional<MemoryLoan> loan_;  // instead of it
    DeviceArena* kept_memory_ = nullptr;
    std::vector<Kind> kinds_;
    std::vector<size_t> kind_of_;  // by block
    std::vector<Kept> kept_;       // by block; with Recompute::block all but the stream are the same memory
    std::byte* last_stream_ = nullptr;
    std::byte* normed_ = nullptr;  // of the head
    float* amax_ = nullptr;        // of a mixer's x, where it reads that
    std::byte* y_ = nullptr;       // [tokens, hidden] BF16: a mixer's output
    float* d_stream_ = nullptr;    // [tokens, hidden]
    std::byte* dy_ = nullptr;      // [tokens, hidden] BF16: d_stream_ rounded, or of a norm behind a mixer
    std::byte* dx_ = nullptr;      // [tokens, hidden] BF16
    std::byte* workspace_ = nullptr;
    BackPlans plans_;
    cuda::Drawn drawn_;
    DeviceCache* cache_ = nullptr;
    Teaching teaching_;

    // Of the micro-batch in hand.
    int64_t tokens_ = 0;
    DeviceUpload upload_, slope_upload_;
    CopyGuard copied_, slopes_copied_;
    int64_t segments_ = 0, labels_ = 0, slopes_ = 0, first_ = 0, ids_ = 0, begin_ = 0, order_ = 0, unique_ = 0;
};

}  // namespace nibble
