// Is a checkpoint what it should be? Every scale usable, partners of one engine matrix equal, nothing missing, nothing
// left out that the recipe quantizes; against its source also what every tensor lost. Checkpoint::open has already
// refused files whose JSON and tensors disagree.
#pragma once

#include "base/progress.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "quant/plan.h"
#include "quant/quant_report.h"

#include <map>

namespace nibble {

// Something that is wrong, in one line: "12 block scales are NaN, the first in row 3".
struct Finding {
    std::string tensor;  // or a group of tensors; empty: the whole checkpoint
    std::string text;
    bool operator==(const Finding&) const = default;
};

struct VerifyReport {
    std::string path, against;  // against: empty without a source
    Dialect dialect = Dialect::plain;
    std::vector<Finding> findings;      // in the tensors' order, then missing tensors, then groups
    std::vector<TensorReport> tensors;  // in the checkpoint's order; losses of quantized ones when there is a source
    double seconds = 0;
    std::string error;  // why the checkpoint could not be opened or read; nothing else is known then

    bool passed() const { return findings.empty() && error.empty(); }
};

// What a recipe wanted: format and inputs of every tensor that is quantized.
struct ExpectedFormat {
    Format format = Format::none;
    ActivationFormat activation = ActivationFormat::none;
    bool operator==(const ExpectedFormat&) const = default;
};
using ExpectedFormats = std::map<std::string, ExpectedFormat, std::less<>>;

ExpectedFormats expected_formats(const Plan& plan);
// For the export's manifest (nibble.json, key "tensors"), and back.
Json to_json(const ExpectedFormats& formats);
Result<ExpectedFormats> expected_formats_from_json(const Json& tensors);

struct VerifyOptions {
    const QuantizeKernels* kernels = nullptr;  // null: the fastest this CPU supports
    const Checkpoint* source = nullptr;        // measure losses against it
    const ExpectedFormats* expected = nullptr;
    // What the job that wrote the checkpoint computed, by name: codes and scales must be those; the losses are then the
    // job's, not measured again.
    const std::vector<TensorReport>* computed = nullptr;
    // A loss below this is a finding, a wrong scale rather than rounding; not where the codes are the computed ones.
    double suspicious_sqnr_db = most_lost_db;
};

// Reads every byte; a checkpoint opened with ScaleReading::raw shows all its scales. Errors: files that cannot be read,
// a stop on request; everything else is a finding.
Result<VerifyReport> verify(const Checkpoint& checkpoint, const VerifyOptions& options, ThreadPool& pool,
                            const JobHooks& hooks);

Json to_json(const VerifyReport& report);  // without a time, equal for equal files
// Findings first; then sizes and losses by format, and the tensors that lost most.
std::string to_text(const VerifyReport& report);

}  // namespace nibble
