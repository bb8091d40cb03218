// The lab of several ranks: two steps of the whole loop (rollouts dealt to the ranks, updates dealt by rows), whose
// answers, log-probabilities and weights are compared bit for bit with those of one process.
#pragma once

#include "parallel/rank_group.h"
#include "rl/mismatch_lab.h"
#include "rl/policy_trainer.h"

namespace nibble {

struct RankLabRun {
    struct Answer {
        std::vector<int32_t> tokens;
        std::vector<float> generated, trained;  // log-probabilities, of the engine and before the update
    };
    std::vector<Answer> answers;  // of all steps
    std::vector<float> masters;   // behind the last one
};

// What both kinds of run have in common. length, sampling and the cache are what the trainer was made for.
RlConfig rank_lab_config(const MismatchOptions& options);
// Rows of a GPU's trainer, tokens of a row.
int64_t rank_lab_row_tokens(const RlConfig& config);

// With a group all ranks call it together, and rank 0's run has the answers of all. `trainer` is that group's.
Result<RankLabRun> run_rank_lab(TrainEngine& trainer, const RlConfig& config, const MismatchOptions& options,
                                RankGroup* group, bool even_rows);

// A line each of `way`: rows "rollout" (ids or log-probabilities of the engine), "training" and "weights".
std::vector<MismatchLine> compare_rank_runs(const RankLabRun& one, const RankLabRun& several, const std::string& way);

}  // namespace nibble
