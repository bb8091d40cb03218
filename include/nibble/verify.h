// The job of `nibble verify`: whether checkpoints are complete and sound, and what they lost against their source.
#pragma once

#include "nibble/error.h"
#include "nibble/hooks.h"
#include "nibble/report.h"

#include <cstdint>
#include <string>
#include <vector>

namespace nibble {

struct VerifyCheckpointsOptions {
    std::vector<std::string> paths;
    std::string against;  // the checkpoint that they were made from; empty: no losses are measured
    int threads = 0;      // 0: one per core
};

struct VerifiedCheckpoint {
    std::string path;
    std::string error;                  // why it could not be opened or read; everything else is empty then
    std::vector<std::string> findings;  // "tensor: what is wrong with it"
    int64_t stored_bytes = 0;
    double bits_per_weight = 0;  // over all tensors
    double sqnr_db = 0;          // of quantized weights against their source; infinity when nothing was lost
    bool passed() const { return findings.empty() && error.empty(); }
};

// text() lists findings, then sizes and losses: of one checkpoint by format, of several a line each.
struct VerificationReport : JobReport {
    std::vector<VerifiedCheckpoint> checkpoints;  // in the order of the paths
    bool passed() const {
        for (const VerifiedCheckpoint& c : checkpoints)
            if (!c.passed()) return false;
        return true;
    }
};

// A checkpoint that cannot be read has an error in the report and does not stop the others. Every byte is read;
// nothing is written. Errors: the source cannot be read; a stop.
Result<VerificationReport> verify_checkpoints(const VerifyCheckpointsOptions& options, const JobHooks& hooks);

}  // namespace nibble
