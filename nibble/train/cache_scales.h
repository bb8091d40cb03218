// The scales of an FP8 KV cache that training and rollouts share: one of K and one of V for every attention block, and
// one of Q where queries are rounded, too. They are frozen until they are renewed from the K, V and Q (after norms and
// rotary embedding) that training forwards computed anyway. The weights of attention stay BF16.
//
//   of a row (a micro-batch)   m = max |x|
//   of the batch               a = sorted maxima [round(percentile / 100 * (n - 1))];   100: the largest
//   scale                      fl(a * margin / 448)       NeMo RL: percentile 99.9, margin 1.05 (rl.md 5.1)
//
// The model reads them from its checkpoint, as it reads those of any checkpoint: CachedCheckpoint.
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

// How K and V are cached while a model is trained and generates.
struct TrainCache {
    KvFormat format = KvFormat::none;  // fp8 (with scales), fp8_page, or none: BF16
    CacheCalibration calibration;
    bool queries = false;  // with fp8: Q is rounded to E4M3 under a scale of its own before it meets K
    bool mirrored = true;  // the training forward reads them so, too; false: another model does, with these scales
};
Status check(const TrainCache& cache);

class CacheScales : public Observer {
public:
    // Of the attention blocks among these.
    CacheScales(std::span<const Block> blocks, const TrainCache& cache);

    // K, V and, with TrainCache::queries, Q: in this order wherever numbers of a block stand one behind the other.
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

    // What is computed next belongs to one row.
    void begin_row() { ++row_; }
    // Scales of what was seen, which is forgotten. A block that saw nothing but zeros keeps its own.
    void renew();
    // The next update of the weights renews them, too, so that one reading of the model serves both.
    void renew_at_update() { due_ = true; }
    bool due() const { return due_; }
    // Behind an update, or where there was none (a step that was skipped).
    void after_update(bool updated);

    // Before the next update, if it renews them: what all ranks have seen since the last time, as if it had been this
    // one alone. group null: one process.
    Status gather(RankGroup* group);

    // Of the scales before the last renew(), on the rows it saw.
    struct Use {
        int64_t values = 0, clipped = 0;  // of K and V; clipped: |x| above 448 times the scale
        int64_t q_values = 0, q_clipped = 0;
    };
    const Use& last_use() const { return last_; }

    // What kv() does, where somebody else has read a row: of every block the largest |k|, |v| (and |q|); and of all
    // rows.
    void add_row(std::span<const float> maxima);
    void add_use(const Use& use);

    // For checkpoints: of every block, 0 where there are none yet. Error: of another model; nothing was changed.
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
        std::array<std::vector<float>, most_sides> maxima;  // of rows
        std::array<int64_t, most_sides> row{-1, -1, -1};    // the last one
    };
    Result<size_t> block_of(const std::string& prefix) const;
    // Rows of one side of a block; returns how many values its scale clips.
    int64_t see(size_t block, size_t side, const float* x, int64_t rows, int64_t cols, int64_t stride);

    size_t sides_ = 2;
    std::vector<BlockScales> blocks_;
    std::vector<Seen> seen_;
    CacheCalibration how_;
    int64_t row_ = 0;
    bool ready_ = false, due_ = false;
    Use use_, last_;
};

// Of the model that this checkpoint describes.
Result<std::shared_ptr<CacheScales>> cache_scales_of(const std::shared_ptr<const Checkpoint>& checkpoint,
                                                     const TrainCache& cache, ThreadPool& pool);

// `base` with the scales as they are when they are read; without a cache format until they are ready.
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
