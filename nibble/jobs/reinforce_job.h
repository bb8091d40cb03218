// The RL job by parts, for callers that divide it among processes.
#pragma once

#include "nibble/reinforce.h"
#include "parallel/rank_group.h"
#include "rl/rl_config.h"
#include "tensor/device.h"

namespace nibble {

// RlOptions, read and checked.
struct RlJob {
    RlConfig config;
    DeviceChoice device;
    std::string kernels;
    int threads = 0;
    double gpu_memory = 1;
    CommandText command;
    RankGroup* ranks = nullptr;  // the processes that divide the steps; null: this one alone
};
// `overrides` take the place of options.set.
Result<RlJob> read_rl_job(const RlOptions& options, const std::vector<KeyOverride>& overrides);

// Checks that the output can be written. The first process calls it before anything is computed.
Status check_rl_job(const RlJob& job, const JobHooks& hooks);
// The settings that all processes of one job must share, in addition to the version of nibble.
std::string rl_job_identity(const RlJob& job);

// All processes of job.ranks call it. Hooks are called in the first one alone.
Result<RlReport> run_rl_job(const RlJob& job, const RlHooks& hooks);

}  // namespace nibble
