// The parts of the training job, for callers that divide it among processes.
#pragma once

#include "nibble/train.h"
#include "parallel/rank_group.h"
#include "tensor/device.h"
#include "train/check_forward.h"
#include "train/train_config.h"

namespace nibble {

// TrainOptions, parsed and checked.
struct TrainJob {
    TrainConfig config;
    std::string where;  // name of the config in messages
    DeviceChoice device;
    std::string kernels;
    int threads = 0;
    std::string profile;
    CommandText command;
    RankGroup* ranks = nullptr;  // processes that share the steps; null: only this process
};
// Parses the options. `overrides` replace options.set. Errors: those of train() about the config.
Result<TrainJob> read_train_job(const TrainOptions& options, const std::vector<KeyOverride>& overrides);

// Checks that the output and the profile can be written. The first process calls it before any computation.
Status check_train_job(const TrainJob& job, const JobHooks& hooks);
// Returns the settings that all processes of a job must share, in addition to the version of nibble.
std::string train_job_identity(const TrainJob& job);

// Runs the job. All processes of job.ranks call it; only the first one calls the hooks. Errors: see train().
Result<TrainReport> run_train_job(const TrainJob& job, const TrainHooks& hooks);

// Options of --check-forward: the format of the KV cache ("bf16", "fp8", "fp8_q" with queries, "fp8_page"), and whether
// the forward products use the weights of the last step (late_forward).
struct ForwardQuestion {
    std::string kv = "bf16";
    bool late = false;
};
// Compares the log-probabilities of the first batch in the training forward pass and in the engine. Does not train.
// Errors: see train().
Result<ForwardCheck> check_train_forward(const TrainJob& job, const ForwardQuestion& question, const JobHooks& hooks);

}  // namespace nibble
