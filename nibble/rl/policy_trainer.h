// Reinforcement learning, one step at a time: rollouts of the serving engine over the trainer's own model, rewards,
// advantages, and updates of that model. The weights are there once: what an update publishes is what the next rollout
// reads; keys and values of the version before are not read again.
//
// Because engine and trainer compute the same bits (docs/architecture.md 4), the log-probability that a token had when
// it was generated is the old one of the loss's ratio. Every step compares it, bit for bit, with the trainer's own
// before the first update: PolicyMetrics::mismatch_tokens. That it is 0 is promised for all recipes whose scales see
// one token at a time (TrainEngine::sees_neighbours); for the others it is measured.
//
// Results depend on config, weights, task and PolicyTrainerOptions::row_tokens alone: not on threads, nor on how the
// engine batches, nor on the number of ranks. These generate answers to prompts of their own; then each has the whole
// step, and its trainer deals the rows.
#pragma once

#include "rl/reference_policy.h"
#include "rl/rl_config.h"
#include "rl/rl_samples.h"
#include "rl/rollout_pool.h"
#include "train/train_engine.h"

#include <atomic>
#include <functional>
#include <memory>
#include <optional>

namespace nibble {

// What grpo.seq_logprob_error_threshold did; PolicyMetrics has the answers that are left.
struct RlMasked {
    double most = 0, mean = 0, least = 0;  // seq_mult_prob_error() of the answers before
    int64_t answers = 0, right = 0;        // left out; of these: with the reward 1
};

struct RlStep {
    int64_t step = 0;
    bool stopped = false;  // by request during the rollouts: nothing was changed, nothing else is set
    // Of the answers in the loss.
    int64_t prompts = 0, answers = 0, failures = 0;
    double reward = 0, shaped_reward = 0;   // means
    double accuracy = 0;                    // share with the reward 1
    int64_t equal_groups = 0;               // prompts whose judged answers have equal rewards: nothing is learned
    int64_t sampling_batches = 1;           // that dynamic sampling needed
    double mean_length = 0, cut_share = 0;  // of tokens that the model wrote
    double mean_turns = 0;
    double turn_limit_share = 0;  // of answers that the environment would have continued
    int64_t longest = 0, generated_tokens = 0;
    // Of rollouts that outlive a step; none: they do not.
    std::optional<int64_t> unfinished;  // answers left for the next step, whole ones of unfinished prompts too
    int64_t dropped = 0;                // answers that were too old
    double mean_age = 0;                // steps since the prompts' answers began
    PolicyMetrics metrics;  // of all updates together: sums, but for `loss` and `kl_penalty`, means of updates
    std::optional<double> kl_in_reward;  // mean estimate over the generated tokens, where it is in the reward
    std::optional<RlMasked> masked;      // where answers are left out by their error
    TrainStep update;                    // the last one
    int64_t updates = 0;
    std::optional<CacheScales::Use> cache;  // of the KV cache's FP8 scales in the last update
    double generate_seconds = 0, reward_seconds = 0, train_seconds = 0;
    // From the weights of the step's updates to what both sides read, and before the rollouts to the operands of a
    // precision of their own; from what the passes saw to the scales of an FP8 cache.
    double handover_seconds = 0, recalibrate_seconds = 0;
    std::vector<RankWork> ranks;               // of the rollouts; empty: one process
    std::vector<std::string> failure_reasons;  // a few
    std::vector<RlSample> samples;             // as many as PolicyTrainerOptions::samples
};

struct RlValidation {
    double reward = 0;     // mean of all judged answers
    int64_t prompts = 0;   // all of whose answers were judged: those of the following
    bool stopped = false;  // by request: nothing else is set
    int64_t answers = 1;   // to each: k
    // Share of right answers (reward 1), of prompts with one among them, and the chance that the most frequent answer
    // is right (rl/pass_at_k.h).
    double avg_at_k = 0, pass_at_k = 0, cons_at_k = 0;
};

// Answers that are generated together on a CPU.
inline constexpr int64_t host_rollouts = 64;

struct PolicyTrainerOptions {
    std::optional<Tokenizer> tokenizer;  // without: no texts of answers
    std::vector<int32_t> end_tokens;
    // The frozen policy of the KL term; needed where kl_penalty > 0.
    std::shared_ptr<ReferencePolicy> reference;
    // What generates; null: the trainer's model. Another one (rl/generation_policy.h) does not agree in every bit; it
    // is renewed after every update where there is a function for that.
    std::shared_ptr<const LanguageModel> generator;
    std::function<Status()> renew_generator;
    bool generator_sees_neighbours = false;  // as TrainEngine::sees_neighbours()
    RankGroup* ranks = nullptr;              // the trainer's; outlives this
    const std::atomic<bool>* stop_requested = nullptr;
    int64_t sequences = host_rollouts;  // that are generated together at most
    // Of free memory, for their keys and values; where the trainer lends memory, that is all they have.
    double memory_share = 0.9;
    // Answers are trained one behind the other in rows of up to so many tokens, each a document; 0: one in a row.
    int64_t row_tokens = 0;
    bool even_rows = false;  // rows of about one length, as many as a power of two allows: GPUs deal them so
    size_t samples = 6;      // answers of a step that are kept for people
};

class PolicyTrainer {
public:
    // Trainer and task outlive it. Errors: what check(config) says; a recipe whose bits depend on a
    // token's neighbours, without importance sampling correction or with several ranks; no memory for the engine.
    static Result<std::unique_ptr<PolicyTrainer>> create(const RlConfig& config, TrainEngine& trainer,
                                                         RolloutTask& task, PolicyTrainerOptions options);

    // Step `number`: keys random numbers and the learning rate. After an error the weights are those of the last whole
    // update.
    Result<RlStep> step(int64_t number);
    // config.validation_answers answers to each of config.validation_prompts prompts that training never sees.
    Result<RlValidation> validate();
    // After an error of either: trainer and place() are as the last whole step left them, and every rank had the error,
    // so that they can be saved. false: it came between a step's updates, or other ranks may not know of it.
    bool can_be_saved() const { return can_be_saved_; }

    uint64_t next_prompt() const { return next_prompt_; }
    // What a checkpoint keeps: the number of the next prompt, and the rollouts under way.
    Json place() const;
    // Error: not such a place; nothing was changed.
    Status set_place(const Json& place);
    const Engine& engine() const { return *engine_; }

private:
    PolicyTrainer(const RlConfig& config, TrainEngine& trainer, RolloutTask& task, PolicyTrainerOptions options)
        : config_(config), trainer_(trainer), task_(task), options_(std::move(options)) {}
    Status check_ranks() const;
    bool alone() const { return !options_.ranks || options_.ranks->size() == 1; }
    RolloutRequest request(int64_t step, uint64_t first_prompt, int64_t prompts, int64_t answers) const;
    Result<RolloutBatch> collect(RlStep& step);
    Result<RolloutBatch> collect_under_way(RlStep& step);
    void shape(RolloutBatch& batch) const;
    Status calibrate();
    Status refresh_generator();
    Status weigh(RolloutBatch& batch, RlStep& step);
    Status learn(RolloutBatch& batch, RlStep& step);
    Status take_off_kl(RolloutBatch& batch, std::span<const std::vector<float>> previous,
                       std::span<const std::vector<float>> reference, RlStep& step) const;
    void mask_by_error(RolloutBatch& batch, std::span<const std::vector<float>> previous, RlStep& step) const;
    double weight(const Rollout& r) const;

    RlConfig config_;
    TrainEngine& trainer_;
    RolloutTask& task_;
    PolicyTrainerOptions options_;
    std::unique_ptr<Engine> engine_;
    std::optional<RolloutPool> pool_;
    AnswerLengths lengths_;
    uint64_t next_prompt_ = 0, version_ = 0;  // version: of the weights, since this was made
    bool generator_stale_ = true;             // the weights changed since it was renewed
    bool can_be_saved_ = true;
};

// Rollouts as a row of training: of each its prompt's tokens and its answer's, labels where the model wrote.
struct RolloutRow {
    TrainBatch batch;
    struct Part {
        size_t rollout = 0, begin = 0, size = 0;  // where the answer's labels are
    };
    std::vector<Part> parts;
};
// Rollouts [first, last) in order, as many in a row as `row_tokens` holds, at least one; those without a token are left
// out.
std::vector<RolloutRow> rollout_rows(const RolloutBatch& batch, size_t first, size_t last, int64_t row_tokens);
// The least limit under which they become as few rows as a power of two allows under `row_tokens`.
int64_t even_row_tokens(const RolloutBatch& batch, size_t first, size_t last, int64_t row_tokens);
// At most so many rows become of `rollouts` rollouts of up to `length` tokens.
int64_t most_rollout_rows(int64_t rollouts, int64_t length, int64_t row_tokens);

}  // namespace nibble
