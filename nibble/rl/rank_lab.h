// Compares several ranks with one process: two complete RL steps (prompts and training rows distributed to ranks).
// Answers, log-probabilities and weights must be equal bit for bit.
#pragma once

#include "parallel/rank_group.h"
#include "rl/mismatch_lab.h"
#include "rl/policy_trainer.h"

namespace nibble {

struct RankLabRun {
    struct Answer {
        std::vector<int32_t> tokens;
        // log-probabilities from the engine, and from the trainer before the update
        std::vector<float> generated, trained;
    };
    std::vector<Answer> answers;  // answers of all steps
    std::vector<float> masters;   // after the last step
};

// Config of both kinds of run. Length, sampling and cache are those that the trainer was created for.
RlConfig rank_lab_config(const MismatchOptions& options);
// Returns the tokens of a training row on a GPU.
int64_t rank_lab_row_tokens(const RlConfig& config);

// Runs the lab. With a group, all its ranks call this together, and rank 0 returns the answers of all ranks. `trainer`
// belongs to that group.
Result<RankLabRun> run_rank_lab(TrainEngine& trainer, const RlConfig& config, const MismatchOptions& options,
                                RankGroup* group, bool even_rows);

// Returns one line per comparison, named `way`: rows "rollout" (ids or log-probabilities of the engine), "training" and
// "weights".
std::vector<MismatchLine> compare_rank_runs(const RankLabRun& one, const RankLabRun& several, const std::string& way);

}  // namespace nibble
