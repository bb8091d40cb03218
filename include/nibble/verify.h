// The job of `nibble verify`: checks that checkpoints are complete and valid, and measures their errors against the
// source.
#pragma once

#include "nibble/error.h"
#include "nibble/hooks.h"
#include "nibble/report.h"

#include <cstdint>
#include <string>
#include <vector>

namespace nibble {

// Checkpoints to verify: folders or .gguf files.
struct VerifyCheckpointsOptions {
    std::vector<std::string> paths;
    std::string against;   // the source checkpoint; empty: errors are not measured
    int threads = 0;       // 0: one per core
    bool partial = false;  // weights that config.json requires may be missing
};

// The result for one path.
struct VerifiedCheckpoint {
    std::string path;
    std::string error;                  // why it could not be opened or read; the other members are then empty
    std::vector<std::string> findings;  // "tensor: defect"
    int64_t stored_bytes = 0;
    double bits_per_weight = 0;  // average over all tensors
    double sqnr_db = 0;          // SQNR of quantized weights against their source; infinity if there is no error
    // Returns true if the checkpoint was read and has no defects.
    bool passed() const { return findings.empty() && error.empty(); }
};

// text() lists findings, then sizes and errors: for one checkpoint by format, for several with one line each.
struct VerificationReport : JobReport {
    std::vector<VerifiedCheckpoint> checkpoints;  // in the order of the paths
    // Returns true if all checkpoints passed.
    bool passed() const {
        for (const VerifiedCheckpoint& c : checkpoints)
            if (!c.passed()) return false;
        return true;
    }
};

// Reads and checks every byte; writes nothing. A checkpoint that cannot be read has an error in the report and does not
// stop the others. Errors by kind: file and checkpoint (the source cannot be read); cancelled.
Result<VerificationReport> verify_checkpoints(const VerifyCheckpointsOptions& options, const JobHooks& hooks);

}  // namespace nibble
