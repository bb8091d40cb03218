// Training on a GPU: implements train/train_engine.h with masters, states and gradients in device memory.
//
// The unit of the arithmetic is the micro-batch: `micro_batch` rows are computed together, forward and backward.
// Gradients of micro-batches are added in the order of AccumulationPlan. So results depend on the rows of a step, their
// order and micro_batch, but not on recomputation or timing. Log-probabilities do not depend on any of these: they have
// the bits of DeviceModel.
//
// The forward pass is the engine's (BF16 operators, FP32 sums). In the backward pass gradients of activations are BF16;
// those of the residual stream and of parameters are FP32. The host waits once per step, at its end, for loss and norm.
#pragma once

#include "train/device/device_optimizer.h"
#include "train/device/device_ranks.h"
#include "train/device/train_pass.h"
#include "train/device_train_engine.h"
#include "train/norm_history.h"
#include "train/phase_weights.h"

namespace nibble {

class DeviceTrainer : public DeviceTrainEngine {
public:
    // The pool must outlive the trainer. Errors: models and recipes without kernels; a step that does not fit in the
    // device's memory (with the sizes).
    static Result<std::unique_ptr<DeviceTrainer>> create(std::shared_ptr<Parameters> parameters,
                                                         const DeviceTrainerOptions& options, ThreadPool& pool);
    // Like Trainer::create_adapters(); K and V are BF16.
    static Result<std::unique_ptr<DeviceTrainer>> create_adapters(std::shared_ptr<const Checkpoint> base,
                                                                  const DeviceTrainerOptions& options,
                                                                  ThreadPool& pool);

    void begin(int64_t step, int64_t steps) override { step_ = step, steps_ = steps; }
    Status enter_phase(int64_t step, int64_t steps) override;
    // The host repeats the rounding of samples and waits for them, so measurements are off by default.
    int64_t usual_look() const override { return 0; }
    Result<TrainStep> step(std::span<const TrainBatch> batches, double learning_rate) override;
    Result<TrainStep> step(std::span<const TrainBatch> batches, const RowObjective& objective,
                           double learning_rate) override;
    Status log_probs(const TrainBatch& batch, std::span<float> out) override;
    Status row_log_probs(std::span<const TrainBatch* const> rows, const OfRow& each) override;
    Status reference_log_probs(std::span<const TrainBatch* const> rows, const OfRow& each) override;
    // For tests: computes loss and gradient without an update, and returns the gradient of every parameter by id.
    Result<TrainStep> backward(std::span<const TrainBatch> batches, std::vector<std::vector<float>>& gradients);

    const ModelConfig& config() const override { return weights_.config(); }
    double flops(int64_t seq) const override;
    const Parameters& parameters() const override { return *parameters_; }
    Result<std::shared_ptr<const Checkpoint>> trained() override;
    Result<Format> codes_format(int64_t steps) override;
    Result<std::unique_ptr<TrainedCodes>> trained_codes(int64_t steps) override;
    Result<std::shared_ptr<const LanguageModel>> serving() override;
    Result<std::shared_ptr<const LanguageModel>> generating() override;
    Status renew_generation() override;
    int64_t time_shared_bytes() const override { return time_shared_ ? time_shared_->bytes() : 0; }
    Status give_memory_to_rollouts() override;
    Status take_memory_back() override;
    bool generation_sees_neighbours() const override { return generation_ && generation_->recipe().sees_neighbours(); }
    PrecisionRecipe& recipe() override { return weights_.recipe(); }
    const PrecisionRecipe& recipe() const override { return weights_.recipe(); }
    CacheScales* cache_scales() override { return cache_ ? &cache_->scales() : nullptr; }
    bool calibrates() const override { return cache_ || weights_.recipe().calibrates(); }
    Status calibrate(std::span<const TrainBatch> batches) override;
    Status set_cache_scales(std::span<const float> state) override;
    Result<TrainState> state() override;
    Status sync() override;
    Result<bool> any(bool mine) override;
    OptimizerLayout state_layout(size_t id) const override { return weights_.state_layout(id); }
    int64_t recipe_size() const override {
        return weights_.recipe().state_size() + (cache_ ? static_cast<int64_t>(cache_->scales().size()) : 0);
    }
    Status set_state(const StoredTrainState& state) override;
    std::vector<std::string> notes() const override;
    std::string arithmetic() const override;
    double memory_gib() const override;

    const TrainMemoryPlan& plan() const { return plan_; }

private:
    DeviceTrainer(std::shared_ptr<Parameters> parameters, const DeviceTrainerOptions& options, DeviceInfo device,
                  Stream stream, TrainWeights weights, ThreadPool& pool)
        : parameters_(std::move(parameters)),
          options_(options),
          pool_(pool),
          device_(std::move(device)),
          stream_(std::move(stream)),
          weights_(std::move(weights)),
          trace_(options.train.trace),
          norms_(options.train.optimizer.skip_above, options.train.optimizer.skip_window) {}
    static constexpr int64_t passing_bytes = int64_t{1} << 26;  // size of a piece when weights are swapped
    static constexpr int64_t scalar_bytes = 256;                // scalars at the beginning of ends_ and of landing_

    Status mark(std::string_view name) { return trace_.mark(DeviceTrace::compute, name, -1, stream_); }
    static Result<DeviceInfo> open(const DeviceTrainerOptions& options);
    static Result<std::unique_ptr<DeviceTrainer>> make(std::shared_ptr<Parameters> parameters,
                                                       const DeviceTrainerOptions& options, DeviceInfo device,
                                                       TrainWeights weights, std::unique_ptr<TrainWeights> generation,
                                                       ThreadPool& pool);
    Status allocate();
    Status make_pass();
    Status make_time_shared_memory();
    Result<std::shared_ptr<const LanguageModel>> serve(DeviceModel::Weights weights);
    Result<std::vector<TrainMemoryPlan::Item>> pass_sizes(const TrainPassShape& shape) const;
    Status make_cache();
    Status cache_was_renewed();
    Result<TrainStep> run(std::span<const TrainBatch> batches, const RowObjective* objective);
    Result<TrainStep> finish(TrainStep step, std::span<const TrainBatch> batches, const RowObjective* objective);
    Result<TrainStep> conclude(TrainStep step, std::span<const TrainBatch> batches, const RowObjective* objective,
                               double learning_rate);
    Result<TrainStep> updated(TrainStep step, double learning_rate);
    Status add(std::pair<int, int> buffers);
    Status queue_update(double learning_rate);
    Status reserve_host(int64_t tokens);
    int64_t reference_bytes() const;
    // The shape of the pass; with a teacher it includes memory for its rows and logits.
    TrainPassShape pass_shape(int64_t rows, Recompute recompute) const;
    int64_t teacher_bytes(int64_t rows) const;
    // Computes the teacher's rows for the micro-batch that the pass takes next.
    Status ask_teacher(const MicroBatch& m);
    Status swap_reference(bool first = false);
    bool sharded() const { return options_.sharding == Sharding::all; }
    Status check_sharding() const;
    std::vector<TrainMemoryPlan::Item> parameter_sizes(Sharding sharding, int64_t micro_batch) const;
    std::string sharding_note() const;
    Result<int64_t> free_memory() const;
    // Returns the micro-batches that this process computes.
    Result<std::vector<MicroBatch>> own_pieces(std::span<const TrainBatch> batches) const;
    // Returns the results of all micro-batches, in order. `tokens` values of this process have arrived in landing_.
    Result<std::vector<float>> of_all_pieces(std::span<const TrainBatch> batches, int64_t tokens) const;
    Status ask_of_other_pieces(const RowObjective& objective, std::span<const TrainBatch> batches,
                               std::pair<int64_t, int64_t> own, std::vector<float> seen, std::span<double> losses);
    Status collect(TrainState& state);
    Result<PhaseWeights> last_weights(int64_t steps) const;  // weights of the last of `steps` steps

    std::shared_ptr<Parameters> parameters_;
    std::shared_ptr<const Checkpoint> base_;  // the frozen weights if the parameters are adapters
    DeviceTrainerOptions options_;
    ThreadPool& pool_;
    DeviceInfo device_;
    Stream stream_;
    TrainWeights weights_;
    std::unique_ptr<TrainWeights> generation_;  // operands of rollouts; null: those of training
    std::optional<DeviceRanks> ranks_;
    TrainMemoryPlan plan_;
    std::unique_ptr<DeviceCache> cache_;  // null: a BF16 cache
    bool rounds_cache_ = false;           // layers of training or of rollouts store K and V in E4M3
    // scales of the reference: of its cache, of its stored inputs
    std::vector<float> reference_scales_, reference_input_scales_;
    DeviceTrace trace_;
    std::unique_ptr<ShardedUnits> units_;             // set for Sharding::all
    std::shared_ptr<DeviceArena> time_shared_arena_;  // covers all of time_shared_
    std::shared_ptr<TimeSharedMemory> time_shared_;   // null: no memory is shared
    std::vector<std::weak_ptr<const DeviceModel>> served_;
    std::unique_ptr<TrainPass> pass_;
    std::optional<DeviceArena> ends_;  // log-probabilities, norm, clip factor
    float* log_probs_ = nullptr;       // log-probabilities of one micro-batch
    std::byte* norm_workspace_ = nullptr;
    std::byte* scalars_ = nullptr;
    std::unique_ptr<DeviceModel> teacher_;
    std::optional<DeviceArena> taught_;
    std::byte* teacher_rows_ = nullptr;  // [tokens of a micro-batch, hidden size of the teacher] BF16
    std::optional<DeviceArena> first_;   // reference_ and passing_
    std::byte* reference_ = nullptr;     // initial published matrices and FP32 vectors; null: not kept
    std::byte* passing_ = nullptr;
    std::optional<PinnedBuffer> landing_;  // scalars, then log-probabilities of all tokens of a step
    DeviceRanks::Sum sum_;                 // gradient of the step
    std::optional<DeviceOptimizer> optimizer_;
    NormHistory norms_;
    int64_t optimizer_steps_ = 0;
    int64_t step_ = 0, steps_ = 0;                     // arguments of begin(); steps_ 0: unknown
    std::optional<Event> publish_begins_, published_;  // events of the last update
    int result_ = 0;                                   // buffer with this process's part of the gradient
};

}  // namespace nibble
