// Measures whether rollout and training agree. The engine generates answers under several schedules (batch sizes,
// chunked prefill, preemption, prefix cache). The log-probability of each token is compared, bit for bit, with that of
// the training forward pass. If the recipe's scales depend on one token at a time, no token may differ
// (docs/topics/rl.md).
#pragma once

#include "kernels/sampling.h"
#include "train/train_engine.h"

#include <memory>
#include <string>
#include <vector>

namespace nibble {

struct MismatchOptions {
    int64_t prompts = 72;
    int64_t longest_prompt = 150;  // tokens; the lengths of prompts vary
    int64_t answer = 80;           // tokens; long enough that the sequence outgrows the page that the engine reserves
    uint64_t seed = 1;
    std::vector<int64_t> batches = {1, 7, 64, 0};  // answers that run together; 0: all
    // The sampling distribution, which is also the trainer's TrainerOptions::sampling; the seed is `seed`. If it is not
    // the raw distribution, prompts are not scored (the way "prefill" is skipped).
    SamplingParams sampling;
};

struct MismatchLine {
    int64_t batch = 0;
    std::string way;   // the schedule: decode, chunked, preempted, prefix hit, prefill
    std::string rows;  // training rows: packed (several documents per row) or padded (one per row, filled up)
    int64_t tokens = 0, mismatches = 0;
    double apart = 0;       // largest difference of log-probabilities
    int64_t events = 0;     // preemptions or cached tokens: evidence that the schedule was exercised
    int64_t other_ids = 0;  // tokens whose ids differ from those of the first schedule
};

struct MismatchReport {
    bool promised = true;  // agreement is guaranteed: the recipe's scales depend on one token at a time
    std::vector<MismatchLine> lines;
    int64_t mismatches() const;
    int64_t tokens() const;
};

// `generator` generates the answers: trainer.serving(), or another model whose differences must be found (a negative
// control). The trainer must have been created for rows of at least longest_prompt + answer tokens. Errors: those of
// the engine; a schedule that had no preemption or cached token.
Result<MismatchReport> measure_mismatch(TrainEngine& trainer, const std::shared_ptr<const LanguageModel>& generator,
                                        const MismatchOptions& options);

// Computes the first scales of an FP8 cache from the lab's prompts. Call it before serving().
Status calibrate_lab(TrainEngine& trainer, const MismatchOptions& options);

// Returns the tokens of a training row in the lab.
int64_t mismatch_row_tokens(const MismatchOptions& options);

// Negative control: multiplies one element of an MLP matrix by 1.5. `scale` true: the largest element, which determines
// a block's scale. false: an element of half that size, so that only its code changes.
void nudge(Parameters& parameters, bool scale, ThreadPool& pool);

}  // namespace nibble
