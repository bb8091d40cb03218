// The job of `nibble inspect`: lists the contents of a checkpoint.
#pragma once

#include "nibble/error.h"
#include "nibble/hooks.h"
#include "nibble/report.h"

#include <string>

namespace nibble {

// The checkpoint and the level of detail.
struct InspectOptions {
    std::string path;      // folder or .gguf file
    bool summary = false;  // text() has the totals only
    bool configs = true;   // json() has config.json as it is and in canonical form; an error if it has none
    int shards = 0;        // above 0: the report is the rows of every tensor for each of this many ranks
};

// Returns a report: text() lists formats and tensors, json() the same for programs. Errors by kind: checkpoint, file.
Result<JobReport> inspect(const InspectOptions& options, const JobHooks& hooks);

}  // namespace nibble
