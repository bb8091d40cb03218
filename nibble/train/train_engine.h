// The interface of trainers on the host (train/trainer.h) and on a GPU (train/device/device_trainer.h). Run loop,
// checkpoints, checks and reports use only this interface.
#pragma once

#include "base/mapped_file.h"
#include "data/train_batch.h"
#include "model/language_model.h"
#include "model/parameters.h"
#include "train/cache_scales.h"
#include "train/optimizer_state.h"
#include "train/precision_recipe.h"
#include "train/rank_rows.h"
#include "train/trained_codes.h"

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nibble {

struct TrainStep {
    double loss = 0;     // value of the objective; for cross-entropy and distillation the weighted mean
    double weight = 0;   // cross-entropy: sum of the labels' weights
    int64_t tokens = 0;  // over all rows; 0: there are no labels, and nothing was computed
    double gradient_norm = 0;
    double learning_rate = 0;
    float clip = 1;        // factor that the gradient was multiplied with
    bool skipped = false;  // the parameters did not change (not finite, an outlier, or no weight)
    bool outlier = false;  // see TrainOptimizer::skip_above
    // Time to make operands from the updated masters, including casts and exchange between ranks. On a GPU it is GPU
    // time.
    double publish_seconds = 0;
    // Time to compute the next step's FP8 cache scales from the maxima of this step.
    double recalibrate_seconds = 0;
};

// The complete state that determines the following steps, in host memory; arrays are indexed by parameter id.
struct TrainState {
    int64_t optimizer_steps = 0;
    std::vector<std::vector<float>> masters;
    std::vector<StateNumbers> m, v;  // v is empty for parameters whose state_layout() has none
    std::vector<float> recipe;       // histories of scales, directions of inputs, scales of the KV cache
    std::vector<double> norms;       // see train/norm_history.h
};
// The same state as stored in a file: little-endian, any alignment. The sizes must have been checked.
struct StoredTrainState {
    int64_t optimizer_steps = 0;
    std::vector<Bytes> masters, m, v;
    std::vector<float> recipe;
    std::vector<double> norms;
};

class TrainEngine {
public:
    virtual ~TrainEngine() = default;

    // Sets the next step and the number of steps, which key random numbers and late phases of a recipe. step()
    // increments the step.
    virtual void begin(int64_t step, int64_t steps) = 0;
    // Makes the following forward passes, including those of serving(), use the products of step `step`. A step calls
    // this itself.
    virtual Status enter_phase(int64_t step, int64_t steps) = 0;
    // Runs one optimizer step on the weighted mean cross-entropy of all labels (with a teacher: its loss). Error: no
    // label has a weight.
    virtual Result<TrainStep> step(std::span<const TrainBatch> batches, double learning_rate) = 0;
    // Runs one optimizer step on any function of the labels' log-probabilities.
    virtual Result<TrainStep> step(std::span<const TrainBatch> batches, const RowObjective& objective,
                                   double learning_rate) = 0;
    // Writes the log-probabilities of all labels of a batch [rows, seq], 0 where there is no label. Forward pass only.
    virtual Status log_probs(const TrainBatch& batch, std::span<float> out) = 0;
    // The same for batches of one row each, which the ranks share by tokens. `each` gets all rows, in order, in every
    // rank.
    virtual Status row_log_probs(std::span<const TrainBatch* const> rows, const OfRow& each) = 0;
    // Returns the weighted mean of -log p, even with a teacher.
    Result<double> evaluate(std::span<const TrainBatch> batches);
    // Returns nothing if `stop` becomes true, in any rank, before the last batch.
    Result<std::optional<double>> evaluate(std::span<const TrainBatch> batches, const std::atomic<bool>* stop);

    virtual const ModelConfig& config() const = 0;
    // Floating-point operations of one token, forward and backward (train_flops.h).
    virtual double flops(int64_t seq) const = 0;
    // Names and shapes are valid; the numbers may be those of an earlier step.
    virtual const Parameters& parameters() const = 0;
    // Returns the model with its current weights, for exports. Valid until the next step.
    virtual Result<std::shared_ptr<const Checkpoint>> trained() = 0;
    // Returns the model in the codes that the last of `steps` steps computes with. codes_format() returns only their
    // format, without the conversion. Errors: those of TrainedCodes.
    virtual Result<Format> codes_format(int64_t steps) = 0;
    virtual Result<std::unique_ptr<TrainedCodes>> trained_codes(int64_t steps) = 0;
    // Returns a model that reads the trainer's own weights, so that it changes with every step. It must not compute
    // during a step. The trainer must outlive it.
    virtual Result<std::shared_ptr<const LanguageModel>> serving() = 0;

    // Memory shared between the KV cache of serving() (rollouts) and the activations of updates, in bytes. 0: nothing
    // is shared, and rollouts use free memory. give_memory_to_rollouts() gives it to the KV cache; computing with the
    // trainer is an error then. take_memory_back() returns it and discards the cache.
    virtual int64_t time_shared_bytes() const { return 0; }
    virtual Status give_memory_to_rollouts() { return Ok{}; }
    virtual Status take_memory_back() { return Ok{}; }

    // The precision of the products of linears.
    virtual PrecisionRecipe& recipe() = 0;
    virtual const PrecisionRecipe& recipe() const = 0;

    // The scales of an FP8 KV cache; null: there are none.
    virtual CacheScales* cache_scales() { return nullptr; }
    // Returns true if calibrate() must run before rollouts: for scales of an FP8 cache or of stored inputs
    // (UnitRules::engine).
    virtual bool calibrates() const = 0;
    // Computes these scales from forward passes over the rows (no labels are needed). The passes have no other effect.
    virtual Status calibrate(std::span<const TrainBatch> batches) = 0;

    // Replaces the scales in use by those of CacheScales::state().
    virtual Status set_cache_scales(std::span<const float>) { return fail("there is no KV cache with scales"); }

    // With several ranks only rank 0 calls this; the others take part in their sync().
    virtual Result<TrainState> state() = 0;
    // Barrier after each step and at the end. Rank 0 returns at once; the other ranks serve its requests until it
    // arrives.
    virtual Status sync() { return Ok{}; }
    // Returns whether `mine` is true in any rank. All ranks call it together.
    virtual Result<bool> any(bool mine) { return mine; }
    virtual OptimizerLayout state_layout(size_t) const { return {}; }
    virtual int64_t recipe_size() const = 0;  // size of TrainState::recipe
    // Error: the state of another recipe. Nothing is changed then.
    virtual Status set_state(const StoredTrainState& state) = 0;

    virtual std::vector<std::string> notes() const = 0;  // lines below the recipe's table
    virtual int64_t usual_look() const { return 50; }    // default steps between measurements; 0: never
    // Anything but config and data that determines the bits of a run; compared on resume. Empty: nothing.
    virtual std::string arithmetic() const { return {}; }
    // Peak memory so far, on the device where it computes.
    virtual double memory_gib() const = 0;
};

}  // namespace nibble
