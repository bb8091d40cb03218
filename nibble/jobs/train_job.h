// The train job by parts, for callers that divide it among processes.
#pragma once

#include "nibble/train.h"
#include "parallel/rank_group.h"
#include "tensor/device.h"
#include "train/check_forward.h"
#include "train/train_config.h"

namespace nibble {

// TrainOptions, read and checked.
struct TrainJob {
    TrainConfig config;
    std::string where;  // the config's name in messages
    DeviceChoice device;
    std::string kernels;
    int threads = 0;
    std::string profile;
    CommandText command;
    RankGroup* ranks = nullptr;  // the processes that divide the steps; null: this one alone
};
// `overrides` take the place of options.set.
Result<TrainJob> read_train_job(const TrainOptions& options, const std::vector<KeyOverride>& overrides);

// Checks that the output and the profile can be written. The first process calls it before anything is computed.
Status check_train_job(const TrainJob& job, const JobHooks& hooks);
// The settings that all processes of one job must share, in addition to the version of nibble.
std::string train_job_identity(const TrainJob& job);

// All processes of job.ranks call it. Hooks are called in the first one alone.
Result<TrainReport> run_train_job(const TrainJob& job, const TrainHooks& hooks);

// The comparison of --check-forward: how K and V are cached ("bf16", "fp8", "fp8_q": queries too, "fp8_page"), and
// whether the forward products are those of the last step (late_forward).
struct ForwardQuestion {
    std::string kv = "bf16";
    bool late = false;
};
// The log-probabilities of the first batch under the training forward pass and under the engine. Nothing is trained.
Result<ForwardCheck> check_train_forward(const TrainJob& job, const ForwardQuestion& question, const JobHooks& hooks);

}  // namespace nibble
