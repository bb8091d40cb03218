// The parts of the RL job, for callers that divide it among processes.
#pragma once

#include "nibble/reinforce.h"
#include "parallel/rank_group.h"
#include "rl/rl_config.h"
#include "tensor/device.h"

namespace nibble {

// RlOptions, parsed and checked.
struct RlJob {
    RlConfig config;
    DeviceChoice device;
    std::string kernels;
    int threads = 0;
    double gpu_memory = 1;
    CommandText command;
    RankGroup* ranks = nullptr;  // processes that share the steps; null: only this process
};
// Parses the options. `overrides` replace options.set. Errors: those of reinforce() about the config.
Result<RlJob> read_rl_job(const RlOptions& options, const std::vector<KeyOverride>& overrides);

// Checks that the output can be written. The first process calls it before any computation.
Status check_rl_job(const RlJob& job, const JobHooks& hooks);
// Returns the settings that all processes of a job must share, in addition to the version of nibble.
std::string rl_job_identity(const RlJob& job);

// Runs the job. All processes of job.ranks call it; only the first one calls the hooks. Errors: see reinforce().
Result<RlReport> run_rl_job(const RlJob& job, const RlHooks& hooks);

}  // namespace nibble
