// The scales of an FP8 KV cache that training and rollouts share: one for K and one for V of every attention block, and
// one for Q if queries are rounded too. They are constant until they are renewed from the K, V and Q (after norms and
// rotary embedding) of the training forward passes. The weights of attention stay BF16.
//
//   per row (a micro-batch)    m = max |x|
//   over the batch             a = sorted maxima [round(percentile / 100 * (n - 1))];   100: the largest
//   scale                      fl(a * margin / 448)       NeMo RL uses percentile 99.9 and margin 1.05
//
// A model reads them from its checkpoint like any other cache scales: CachedCheckpoint.
#pragma once

#include "checkpoint/checkpoint.h"
#include "model/cpu/model.h"
#include "parallel/rank_group.h"

#include <array>
#include <memory>
#include <string>
#include <vector>

namespace nibble {

struct CacheCalibration {
    double percentile = 100, margin = 1.05;
};

// The KV cache of a model that is trained and generates rollouts.
struct TrainCache {
    KvFormat format = KvFormat::none;  // fp8 (with scales), fp8_page, or none: BF16
    CacheCalibration calibration;
    bool queries = false;  // with fp8: Q is rounded to E4M3 under its own scale before attention
    // the training forward pass rounds K and V in the same way; false: only another model does, with these scales
    bool mirrored = true;
};
Status check(const TrainCache& cache);

class CacheScales : public Observer {
public:
    // Creates scales for the attention blocks among `blocks`.
    CacheScales(std::span<const Block> blocks, const TrainCache& cache);

    // The sides of a block are K, V and, with TrainCache::queries, Q. Arrays per block have this order.
    static constexpr size_t most_sides = 3;
    size_t sides() const { return sides_; }
    struct BlockScales {
        std::string prefix;
        float k = 1, v = 1, q = 1;
        float& side(size_t i) { return i == 0 ? k : i == 1 ? v : q; }
        float side(size_t i) const { return i == 0 ? k : i == 1 ? v : q; }
    };
    std::span<const BlockScales> blocks() const { return blocks_; }
    size_t size() const { return sides_ * blocks_.size(); }
    bool ready() const { return ready_; }

    // Starts a row: the maxima of the following passes belong to it.
    void begin_row() { ++row_; }
    // Computes the scales from the maxima since the last call and resets these. A block with only zeros keeps its
    // scales.
    void renew();
    // Marks the scales for renewal with the next update of the weights, so that the model is reloaded only once.
    void renew_at_update() { due_ = true; }
    bool due() const { return due_; }
    // Call it after a step. updated: false if the step was skipped.
    void after_update(bool updated);

    // Before an update that renews the scales: combines the maxima of all ranks, as if one process had seen all rows.
    // group null: a single process.
    Status gather(RankGroup* group);

    // How often values were clipped under the scales in use before the last renew(), on the rows since then.
    struct Use {
        int64_t values = 0, clipped = 0;  // number of elements of K and V; clipped: |x| > 448 times the scale
        int64_t q_values = 0, q_clipped = 0;
    };
    const Use& last_use() const { return last_; }

    // Add the result of a pass that was computed elsewhere (on a GPU). maxima: of one row, the largest |k|, |v| (and
    // |q|) of every block. use: counts over all rows.
    void add_row(std::span<const float> maxima);
    void add_use(const Use& use);

    // State for checkpoints: the scales of every block, 0 if there are none yet. set_state() fails for the state of
    // another model and changes nothing then.
    std::vector<float> state() const;
    Status set_state(std::span<const float> state);

    Status kv(const std::string& prefix, const float* k, const float* v, int64_t rows, int64_t k_cols,
              int64_t v_cols) override;
    Status queries(const std::string& prefix, const float* q, int64_t rows, int64_t cols, int64_t stride) override;
    Status input(const Linear&, const float*, int64_t, int64_t, std::span<const int32_t>) override { return Ok{}; }
    Status output_gradient(const Linear&, const float*, int64_t, int64_t, std::span<const int32_t>) override {
        return Ok{};
    }

private:
    void set_seen(std::span<const RankBytes> of_ranks);

    struct Seen {
        std::array<std::vector<float>, most_sides> maxima;  // one maximum per row
        std::array<int64_t, most_sides> row{-1, -1, -1};    // row of the last maximum
    };
    Result<size_t> block_of(const std::string& prefix) const;
    // Updates the maxima of one side of a block from `rows` rows and returns how many values its scale clips.
    int64_t see(size_t block, size_t side, const float* x, int64_t rows, int64_t cols, int64_t stride);

    size_t sides_ = 2;
    std::vector<BlockScales> blocks_;
    std::vector<Seen> seen_;
    CacheCalibration how_;
    int64_t row_ = 0;
    bool ready_ = false, due_ = false;
    Use use_, last_;
};

// Creates the scales of the model that `checkpoint` describes.
Result<std::shared_ptr<CacheScales>> cache_scales_of(const std::shared_ptr<const Checkpoint>& checkpoint,
                                                     const TrainCache& cache, ThreadPool& pool);

// A view of `base` that also has the current cache scales. Until they are ready it has no cache format.
class CachedCheckpoint : public Checkpoint {
public:
    CachedCheckpoint(std::shared_ptr<const Checkpoint> base, std::shared_ptr<const CacheScales> scales);

    const std::filesystem::path& path() const override { return base_->path(); }
    Dialect dialect() const override { return base_->dialect(); }
    const Json& config() const override { return base_->config(); }
    KvFormat kv() const override { return scales_->ready() ? KvFormat::fp8 : KvFormat::none; }
    std::span<const CheckpointTensor> tensors() const override { return tensors_; }
    Result<MatrixView> read_plain(size_t index, int64_t begin, int64_t count, Matrix& scratch) const override;
    Result<QuantView> read_quant(size_t index, int64_t begin, int64_t count, QuantMatrix& scratch) const override {
        return base_->read_quant(index, begin, count, scratch);
    }
    void done_with(size_t index, int64_t begin, int64_t count) const override {
        if (index < base_->tensors().size()) base_->done_with(index, begin, count);
    }
    Result<std::vector<SideFile>> side_files() const override { return base_->side_files(); }

private:
    std::shared_ptr<const Checkpoint> base_;
    std::shared_ptr<const CacheScales> scales_;
    std::vector<CheckpointTensor> tensors_;
};

}  // namespace nibble
