// The job of `nibble verify`: whether checkpoints are complete and sound, and what they lost against their source.
#pragma once

#include "jobs/job.h"
#include "quant/verify.h"

#include <string>
#include <vector>

namespace nibble {

struct VerifyCheckpointsOptions {
    std::vector<std::string> paths;
    std::string against;  // the checkpoint that they were made from; empty: no losses are measured
    int threads = 0;      // 0: one per core
};

// A report for each path, in order. A checkpoint that cannot be read has VerifyReport::error and does not stop the
// others. Every byte is read; nothing is written. Errors: the source cannot be read; a stop.
Result<std::vector<VerifyReport>> verify_checkpoints(const VerifyCheckpointsOptions& options, const JobHooks& hooks);

}  // namespace nibble
