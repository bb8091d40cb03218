// Verifies a checkpoint: all scales are valid, linears that engines fuse have equal scales, no tensor is missing,
// everything that the recipe quantizes is quantized. With the source, measures the error of every tensor.
// Checkpoint::open() already rejects files whose JSON and tensors disagree.
#pragma once

#include "base/progress.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "quant/plan.h"
#include "quant/quant_report.h"

#include <map>

namespace nibble {

// A defect, in one line: "12 block scales are NaN, the first in row 3".
struct Finding {
    std::string tensor;  // or a group of tensors; empty: the whole checkpoint
    std::string text;
    bool operator==(const Finding&) const = default;
};

struct VerifyReport {
    std::string path, against;  // against: the source; empty: none
    Dialect dialect = Dialect::plain;
    std::vector<Finding> findings;      // in the order of the tensors, then missing tensors, then groups
    std::vector<TensorReport> tensors;  // in the order of the checkpoint; with losses of quantized tensors if there is
                                        // a source
    double seconds = 0;
    std::string error;  // why the checkpoint could not be opened or read; the other members are then empty

    bool passed() const { return findings.empty() && error.empty(); }
};

// The format that a recipe requires for a quantized tensor and its inputs.
struct ExpectedFormat {
    Format format = Format::none;
    ActivationFormat activation = ActivationFormat::none;
    bool operator==(const ExpectedFormat&) const = default;
};
using ExpectedFormats = std::map<std::string, ExpectedFormat, std::less<>>;

ExpectedFormats expected_formats(const Plan& plan);
// Write and read the export's manifest (nibble.json, key "tensors"). Error: a missing key or a wrong type.
Json to_json(const ExpectedFormats& formats);
Result<ExpectedFormats> expected_formats_from_json(const Json& tensors);

struct VerifyOptions {
    const QuantizeKernels* kernels = nullptr;  // null: the fastest that this CPU supports
    const Checkpoint* source = nullptr;        // source for measuring losses; null: none
    const ExpectedFormats* expected = nullptr;
    // True if every weight that config.json requires must be there (model/missing_weights.h).
    bool complete = false;
    // Reports by the job that wrote the checkpoint, by name. Codes and scales must match them; losses are then taken
    // from the reports and not measured again.
    const std::vector<TensorReport>* computed = nullptr;
    // An SQNR below this limit is a finding, because it points to a wrong scale rather than rounding. Not applied to
    // codes that match `computed`.
    double suspicious_sqnr_db = most_lost_db;
};

// Reads and checks every byte. Open the checkpoint with ScaleReading::raw so that invalid scales can be found. Errors:
// files that cannot be read, a requested stop. Everything else is a finding.
Result<VerifyReport> verify(const Checkpoint& checkpoint, const VerifyOptions& options, ThreadPool& pool,
                            const JobHooks& hooks);

Json to_json(const VerifyReport& report);  // contains no time: equal for equal files
// Returns findings, then sizes and losses by format, and the tensors with the largest losses.
std::string to_text(const VerifyReport& report);

}  // namespace nibble
