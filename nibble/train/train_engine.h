// What computes the steps of a run: on the host (train/trainer.h) or on a GPU (train/device/device_trainer.h). The run
// loop, checkpoints, checks and reports know this alone.
#pragma once

#include "base/mapped_file.h"
#include "data/train_batch.h"
#include "model/language_model.h"
#include "model/parameters.h"
#include "train/cache_scales.h"
#include "train/optimizer_state.h"
#include "train/rank_rows.h"
#include "train/step_products.h"
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
    double loss = 0;     // the objective's; of cross-entropy and distillation the weighted mean
    double weight = 0;   // cross-entropy: the sum of the labels' weights
    int64_t tokens = 0;  // of all rows; 0: none is learned, and nothing was computed
    double gradient_norm = 0;
    double learning_rate = 0;
    float clip = 1;        // that the gradient was multiplied with
    bool skipped = false;  // not finite, an outlier, no weight: the parameters are as before
    bool outlier = false;  // TrainOptimizer::skip_above
    // Parts of the step. From masters to what products read, casts and exchange between ranks; on a GPU as it saw it.
    double publish_seconds = 0;
    // What scales of an FP8 cache cost behind the passes: from what these saw to the scales of the next step.
    double recalibrate_seconds = 0;
};

// Everything that decides the steps to come, on the host: of every parameter by id.
struct TrainState {
    int64_t optimizer_steps = 0;
    std::vector<std::vector<float>> masters;
    std::vector<StateNumbers> m, v;  // v empty where state_layout() has none
    std::vector<float> recipe;       // histories of scales, directions of inputs, scales of the KV cache
    std::vector<double> norms;       // train/norm_history.h
};
// The same where it lies in a file: little-endian, any alignment, sizes checked by whoever made it.
struct StoredTrainState {
    int64_t optimizer_steps = 0;
    std::vector<Bytes> masters, m, v;
    std::vector<float> recipe;
    std::vector<double> norms;
};

class TrainEngine {
public:
    virtual ~TrainEngine() = default;

    // Which step comes next, of how many: keys random numbers and late phases of a recipe. step() counts on by itself.
    virtual void begin(int64_t step, int64_t steps) = 0;
    // Forward passes from here on, this model's own included, multiply as in that step; a step does so by itself.
    virtual Status enter_phase(int64_t step, int64_t steps) = 0;
    // One step of the optimizer on the mean cross-entropy (with a teacher: its loss) of all labels, weighted. Error: no
    // label has a weight.
    virtual Result<TrainStep> step(std::span<const TrainBatch> batches, double learning_rate) = 0;
    // The same for any function of the labels' log-probabilities.
    virtual Result<TrainStep> step(std::span<const TrainBatch> batches, const RowObjective& objective,
                                   double learning_rate) = 0;
    // Log-probabilities of all labels of a batch, [rows, seq], 0 where there is none; forward only.
    virtual Status log_probs(const TrainBatch& batch, std::span<float> out) = 0;
    // The same of batches of one row each, which ranks deal by their tokens; `each` gets all, in order, in every rank.
    virtual Status row_log_probs(std::span<const TrainBatch* const> rows, const OfRow& each) = 0;
    // The weighted mean of -log p, with a teacher too.
    Result<double> evaluate(std::span<const TrainBatch> batches);
    // Nothing where `stop` is true before the last batch, in any rank.
    Result<std::optional<double>> evaluate(std::span<const TrainBatch> batches, const std::atomic<bool>* stop);

    virtual const ModelConfig& config() const = 0;
    // Floating-point operations of a token forward and back (train_flops.h).
    virtual double flops(int64_t seq) const = 0;
    // Names and shapes; the numbers may be those of an earlier step.
    virtual const Parameters& parameters() const = 0;
    // The model as it is now, for exports; valid until the next step.
    virtual Result<std::shared_ptr<const Checkpoint>> trained() = 0;
    // The same in the codes that the last of `steps` steps computes with, and their format, without the work. Errors:
    // as TrainedCodes.
    virtual Result<Format> codes_format(int64_t steps) = 0;
    virtual Result<std::unique_ptr<TrainedCodes>> trained_codes(int64_t steps) = 0;
    // A model that reads the trainer's own weights, so that after a step it has the new ones. Nothing of it is under
    // way during a step; the trainer outlives it.
    virtual Result<std::shared_ptr<const LanguageModel>> serving() = 0;

    // Memory for keys and values of serving() that updates have in turn with rollouts; 0: none, rollouts have what is
    // free. While it is lent, computing here is an error; what rollouts kept in it is lost when it is taken back.
    virtual int64_t lent_bytes() const { return 0; }
    virtual Status lend_memory() { return Ok{}; }
    virtual Status take_memory_back() { return Ok{}; }

    // As StepProducts has them.
    virtual void hold_scales(bool hold) = 0;
    virtual Result<std::vector<float>> input_scales() = 0;
    virtual Status set_input_scales(std::span<const float> scales) = 0;

    // The scales of an FP8 KV cache; null: there are none.
    virtual CacheScales* cache_scales() { return nullptr; }
    // Whether it has scales that rows must make before rollouts: of an FP8 cache, of stored inputs (UnitRules::engine).
    virtual bool calibrates() const = 0;
    // Those of these rows (no labels are needed), whose forward passes leave no other trace; the model reads them.
    virtual Status calibrate(std::span<const TrainBatch> batches) = 0;

    // Scales as CacheScales::state() has them take the places of those in use.
    virtual Status set_cache_scales(std::span<const float>) { return fail("there is no KV cache with scales"); }

    // With several ranks rank 0 alone calls this; the others serve it in their sync().
    virtual Result<TrainState> state() = 0;
    // Ranks meet here behind every step and at the end: rank 0 goes on, the others do until then what it needs of them.
    virtual Status sync() { return Ok{}; }
    // Whether any rank says so; all ranks ask together.
    virtual Result<bool> any(bool mine) { return mine; }
    virtual OptimizerLayout state_layout(size_t) const { return {}; }
    virtual int64_t recipe_size() const = 0;  // numbers of TrainState::recipe
    // Error: a state of another recipe; nothing was changed.
    virtual Status set_state(const StoredTrainState& state) = 0;

    // What every linear's three products are in fact, and lines that belong to the table.
    virtual std::vector<UnitLine> table() const = 0;
    virtual std::vector<std::string> notes() const = 0;
    // How well rounded operands stood for their sources in the first row of the last step that was watched; empty
    // where nothing is rounded, or where it is not measured.
    virtual void watch(bool) {}
    virtual std::vector<UnitQuality> quality() const { return {}; }
    virtual int64_t usual_look() const { return 50; }  // steps between watched ones, where nobody says it; 0: none
    // Whether a row's log-probabilities depend on its neighbours in a batch.
    virtual bool sees_neighbours() const = 0;
    // What beside the config and the data decides the bits of a run: compared on resume. Empty: nothing.
    virtual std::string arithmetic() const { return {}; }
    // Where it computes, most of what it has used so far.
    virtual double memory_gib() const = 0;
};

}  // namespace nibble
