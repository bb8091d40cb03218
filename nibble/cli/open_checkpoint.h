// Opens a checkpoint for a command.
#pragma once

#include "checkpoint/checkpoint.h"

namespace nibble {

// Checkpoint::open, and its notes as lines to stderr, unless `quiet`.
Result<std::unique_ptr<Checkpoint>> open_checkpoint(const std::filesystem::path& path, bool quiet = false,
                                                    ScaleReading scales = ScaleReading::checked);

}  // namespace nibble
