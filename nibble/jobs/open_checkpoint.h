// Opens a job's source checkpoint.
#pragma once

#include "base/progress.h"
#include "checkpoint/checkpoint.h"

namespace nibble {

// Calls Checkpoint::open(); its notes go to hooks.note.
Result<std::unique_ptr<Checkpoint>> open_checkpoint(const std::filesystem::path& path, const JobHooks& hooks,
                                                    ScaleReading scales = ScaleReading::checked);

// Returns "is quantized already (211 tensors, the first in Q4_1)"; empty: it is not quantized.
std::string quantized_text(const Checkpoint& checkpoint);

}  // namespace nibble
