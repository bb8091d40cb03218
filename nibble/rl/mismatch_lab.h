// Do rollout and training agree? Answers are generated in every way that an engine has, and the log-probability that it
// gave for each token is compared, bit for bit, with what the training forward says of it. Where the recipe's scales
// see one token at a time, the number of tokens that differ is 0 (docs/rl.md).
#pragma once

#include "kernels/sampling.h"
#include "train/train_engine.h"

#include <memory>
#include <string>
#include <vector>

namespace nibble {

struct MismatchOptions {
    int64_t prompts = 72;
    int64_t longest_prompt = 150;  // tokens; lengths differ
    int64_t answer = 80;           // tokens: enough to grow by more than the page that an engine sets aside
    uint64_t seed = 1;
    std::vector<int64_t> batches = {1, 7, 64, 0};  // answers that run together; 0: all
    // What is drawn from, and the trainer's TrainerOptions::sampling; its seed is `seed`. Not the raw distribution: no
    // way that scores prompts.
    SamplingParams sampling;
};

struct MismatchLine {
    int64_t batch = 0;
    std::string way;   // decode, chunked, preempted, prefix hit, prefill
    std::string rows;  // of training: packed (documents one behind the other), padded (one a row, filled up)
    int64_t tokens = 0, mismatches = 0;
    double apart = 0;       // at most
    int64_t events = 0;     // preemptions, cached tokens: what makes the way what it is
    int64_t other_ids = 0;  // tokens that are not those of the first way
};

struct MismatchReport {
    bool promised = true;  // the recipe's scales see one token at a time
    std::vector<MismatchLine> lines;
    int64_t mismatches() const;
    int64_t tokens() const;
};

// `generator` generates: trainer.serving(), or a model that must show (a negative control). `rows` and `seq` are what
// the trainer was planned for: rows of at least longest_prompt + answer tokens. Errors: of the engine; a way that did
// not happen.
Result<MismatchReport> measure_mismatch(TrainEngine& trainer, const std::shared_ptr<const LanguageModel>& generator,
                                        const MismatchOptions& options);

// The first scales of an FP8 cache, of the lab's prompts; before serving().
Status calibrate_lab(TrainEngine& trainer, const MismatchOptions& options);

// Tokens of a training row in the lab.
int64_t mismatch_row_tokens(const MismatchOptions& options);

// For negative controls: one number of one matrix of an MLP is half as large again. `scale`: it is the largest of the
// matrix, on which a block's scale depends; else one of half that size, whose code changes.
void nudge(Parameters& parameters, bool scale, ThreadPool& pool);

}  // namespace nibble
