// Runs reinforcement learning step by step: rollouts by the serving engine over the trainer's own model, rewards,
// advantages, and updates of that model. There is one copy of the weights: the next rollout reads the weights that the
// update published. Keys and values of older weights are never reused.
//
// Engine and trainer compute the same bits (docs/architecture.md 4). So the log-probability from generation is the old
// log-probability of the loss's ratio. Before the first update, every step compares it, bit for bit, with the trainer's
// own: PolicyMetrics::mismatch_tokens. It is guaranteed to be 0 for all recipes whose scales depend on one token at a
// time (TrainEngine::sees_neighbours); for other recipes it is measured.
//
// Results depend only on config, weights, task and PolicyTrainerOptions::row_tokens. They do not depend on threads, on
// how the engine batches, or on the number of ranks. Each rank generates the answers to its share of the prompts. Then
// all ranks have the whole batch, and the trainer distributes its rows.
#pragma once

#include "rl/reference_policy.h"
#include "rl/rl_config.h"
#include "rl/rl_step.h"
#include "rl/rollout_pool.h"
#include "rl/rollout_rows.h"
#include "train/train_engine.h"

#include <atomic>
#include <functional>
#include <memory>
#include <optional>

namespace nibble {

struct RlValidation {
    double reward = 0;     // mean over all judged answers
    int64_t prompts = 0;   // prompts all of whose answers were judged; the accuracies below cover these
    bool stopped = false;  // stopped by request: no other field is set
    int64_t answers = 1;   // answers per prompt: k
    // Share of correct answers (reward 1), share of prompts with at least one, and probability that the most frequent
    // answer is correct (rl/pass_at_k.h).
    double avg_at_k = 0, pass_at_k = 0, cons_at_k = 0;
};

// Default number of answers that are generated together on a CPU.
inline constexpr int64_t host_rollouts = 64;

struct PolicyTrainerOptions {
    std::optional<Tokenizer> tokenizer;  // if absent, samples have no text
    std::vector<int32_t> end_tokens;
    // The frozen policy of the KL term. Required if kl_penalty > 0.
    std::shared_ptr<ReferencePolicy> reference;
    // The model that generates; null: the trainer's own. Another one (rl/generation_policy.h) differs in some bits. If
    // renew_generator is set, it is called after every update.
    std::shared_ptr<const LanguageModel> generator;
    std::function<Status()> renew_generator;
    bool generator_sees_neighbours = false;  // TrainEngine::sees_neighbours() of the generator
    RankGroup* ranks = nullptr;              // the trainer's ranks; must outlive the policy trainer
    const std::atomic<bool>* stop_requested = nullptr;
    int64_t sequences = host_rollouts;  // maximum number of sequences generated together
    // Share of free memory for keys and values. Ignored if the trainer shares its memory with the KV cache: then they
    // get that memory only.
    double memory_share = 0.9;
    // Answers are packed, as separate documents, into training rows of up to this many tokens. 0: one answer per row.
    int64_t row_tokens = 0;
    // packs rows with the limit of even_row_tokens(), because several GPUs share rows by powers of two
    bool even_rows = false;
    size_t samples = 6;  // answers of a step that are kept for display
};

class PolicyTrainer {
public:
    // Trainer and task must outlive it. Errors: those of check(config); a recipe whose bits depend on a token's
    // neighbours, if importance sampling correction is off or there are several ranks; too little memory for the
    // engine.
    static Result<std::unique_ptr<PolicyTrainer>> create(const RlConfig& config, TrainEngine& trainer,
                                                         RolloutTask& task, PolicyTrainerOptions options);

    // Runs step `number`, which keys the random numbers and the learning rate. After an error the weights are those of
    // the last complete update.
    Result<RlStep> step(int64_t number);
    // Generates config.validation_answers answers to each of config.validation_prompts prompts. Training never uses
    // them.
    Result<RlValidation> validate();
    // After an error of step() or validate(): true if trainer and place() are those after the last complete step and
    // every rank got the error, so that a checkpoint can be saved. false: the error came between a step's updates, or
    // other ranks may not have noticed it.
    bool can_be_saved() const { return can_be_saved_; }

    uint64_t next_prompt() const { return next_prompt_; }
    // Returns the state for a checkpoint: the number of the next prompt and the unfinished rollouts.
    Json place() const;
    // Error: the JSON is not such a state. Nothing is changed then.
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
    Status calibrate();
    Status refresh_generator();
    Status weigh(RolloutBatch& batch, RlStep& step);
    Status learn(RolloutBatch& batch, RlStep& step);

    RlConfig config_;
    TrainEngine& trainer_;
    RolloutTask& task_;
    PolicyTrainerOptions options_;
    std::unique_ptr<Engine> engine_;
    std::optional<RolloutPool> pool_;
    AnswerLengths lengths_;
    uint64_t next_prompt_ = 0, version_ = 0;  // version_: counts weight changes since creation
    bool generator_stale_ = true;             // the weights changed since the generator was renewed
    bool can_be_saved_ = true;
};

}  // namespace nibble
