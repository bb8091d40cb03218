// Opens a job's source checkpoint.
#pragma once

#include "base/progress.h"
#include "checkpoint/checkpoint.h"

namespace nibble {

// Calls Checkpoint::open(); its notes go to hooks.note.
Result<std::unique_ptr<Checkpoint>> open_checkpoint(const std::filesystem::path& path, const JobHooks& hooks,
                                                    ScaleReading scales = ScaleReading::checked,
                                                    StackReading stacks = StackReading::split);

// Refuses a checkpoint that lacks weights which its config.json requires (model/missing_weights.h). `partial` accepts
// the checkpoint and reports the missing weights to hooks.note.
Status check_weights_present(const Checkpoint& checkpoint, bool partial, const JobHooks& hooks);

// Reports to hooks.note which files of the checkpoint are links out of its folder (checkpoint/side_files.h).
void note_outside_links(const Checkpoint& checkpoint, std::span<const Checkpoint::SideFile> files,
                        const JobHooks& hooks);

// Returns "is quantized already (211 tensors, the first in Q4_1)"; empty: it is not quantized.
std::string quantized_text(const Checkpoint& checkpoint);

}  // namespace nibble
