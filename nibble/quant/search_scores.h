// Scores the cost of a format in quality, per group: by gradients in one backward pass, or by one forward pass for
// every group and format.
//
// Gradient scores. For a linear y = W x, quantizing its weights (and inputs, if the format does) changes y_t of token t
// by d_t, computed with the engine's own products. g_t is the gradient at y_t of the log-likelihood of labels drawn
// from the model's own distribution.
//   fisher    1 / (2 T) sum_t (g_t . d_t)^2: the second-order estimate of the mean KL divergence (in nats) that the
//             change causes, with the Fisher matrix as Hessian and without terms between tokens and linears
//   modelopt  sum_t sum_j clamp(g_tj d_tj, 1e10)^2: the score of auto_quantize, whose Fisher matrix is diagonal. Model
//             Optimizer uses the gradient of the text's own labels, nibble that of sampled labels.
// A group's score is the sum over its linears.
//
// KL scores. Mean over tokens of KL(p of the source || p with only this group quantized). Blocks before the group are
// run once; the blocks after it once per format.
#pragma once

#include "base/progress.h"
#include "base/thread_pool.h"
#include "io/journal.h"
#include "model/cpu/model.h"
#include "quant/calibrate.h"
#include "quant/search.h"
#include "quant/trial_checkpoint.h"

#include <memory>

namespace nibble {

struct ScoreOptions {
    ScoreMethod method = ScoreMethod::fisher;
    Compute compute = Compute::bf16;
    int64_t batch_tokens = 4096;
    uint64_t seed = 1;                    // seed of the sampled labels
    int64_t memory = int64_t{2} << 30;    // bytes of residual streams in memory
    std::filesystem::path scratch = ".";  // folder of the file for the rest
    // Journal of an unfinished search. Scores of groups that it contains are reused; new ones are added when a block
    // (gradient scores) or a group (kl) is finished. The caller must identify it by all options above and the text.
    // Null: nothing is saved.
    Journal* journal = nullptr;
    // Device of the forward passes: ranges of inputs, KL scores and measured divergences. Gradient scores need a
    // backward pass, which runs on the CPU.
    DeviceChoice device;
};

using TokenSequences = std::span<const std::vector<int32_t>>;

// Provides checkpoints for choices of formats. Holds the input scales that some formats store, calibrated by maxima in
// create().
class Trials {
public:
    // All arguments must outlive the object.
    static Result<Trials> create(const Checkpoint& source, const SearchSpace& space, std::string_view origin,
                                 TokenSequences sequences, const ScoreOptions& options, ThreadPool& pool,
                                 const JobHooks& hooks);
    Result<std::unique_ptr<TrialCheckpoint>> of(std::span<const size_t> choice) const;
    // Returns the checkpoint in which every group that permits `format` has it, and the others are unquantized.
    Result<std::unique_ptr<TrialCheckpoint>> uniform(size_t format) const;
    const Checkpoint& source() const { return *source_; }
    const SearchSpace& space() const { return *space_; }
    ThreadPool& pool() const { return *pool_; }

private:
    Result<Plan> uniform_plan(size_t format) const;
    std::vector<size_t> uniform_choice(size_t format) const;

    const Checkpoint* source_ = nullptr;
    const SearchSpace* space_ = nullptr;
    ThreadPool* pool_ = nullptr;
    std::optional<Calibration> ranges_;
};

// Computes scores by options.method over `sequences` (none empty), monotone in the bits. The result does not depend on
// the number of threads. Errors: those of calibrate(); a group with a choice that no token reached.
Result<SearchScores> search_scores(const Trials& trials, std::string_view origin, TokenSequences sequences,
                                   const ScoreOptions& options, const JobHooks& hooks);

// KL divergence of changed models from a source, on a text.
class KlRunner;  // quant/kl_runner.h

class KlMeter {
public:
    KlMeter(KlMeter&&) noexcept;
    KlMeter& operator=(KlMeter&&) noexcept;
    ~KlMeter();
    // All arguments must outlive the meter.
    static Result<KlMeter> create(const Checkpoint& source, TokenSequences sequences, const ScoreOptions& options,
                                  ThreadPool& pool);
    int64_t tokens() const { return tokens_; }
    // Returns the mean over all positions of KL(source || changed) in nats; inputs are quantized as `changed`
    // specifies.
    Result<double> measure(const Checkpoint& changed);
    // Returns the divergence of every (group, candidate) of the trials' space: [group][i]. Holds all blocks of the
    // source in memory. `journal`: see ScoreOptions.
    Result<std::vector<std::vector<double>>> measure_groups(const Trials& trials, Journal* journal,
                                                            const JobHooks& hooks);

private:
    KlMeter();
    Result<double> mean(Result<double> sum) const;

    const Checkpoint* source_ = nullptr;
    ThreadPool* pool_ = nullptr;
    int64_t tokens_ = 0;
    std::unique_ptr<KlRunner> runner_;
};

}  // namespace nibble
