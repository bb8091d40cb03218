// The job of `nibble inspect`: what a checkpoint contains.
#pragma once

#include "nibble/error.h"
#include "nibble/hooks.h"
#include "nibble/report.h"

#include <string>

namespace nibble {

struct InspectOptions {
    std::string path;      // folder or .gguf file
    bool summary = false;  // text() has the totals only
    bool configs = true;   // json() has config.json as it is and in canonical form; an error where it has none
};

// text() lists formats and tensors, json() the same for programs. Errors by kind: checkpoint, file.
Result<JobReport> inspect(const InspectOptions& options, const JobHooks& hooks);

}  // namespace nibble
