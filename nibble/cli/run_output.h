// The output folder of `nibble train` and `nibble rl`: its room, and what is said about a run that goes on.
#pragma once

#include "checkpoint/checkpoint.h"
#include "run/folder.h"

namespace nibble {

// Bytes that a run of this model writes at most: a checkpoint, the next one while it is written, and the model.
// adapters: checkpoints hold these alone, which are small.
int64_t planned_run_bytes(const Checkpoint& model, const TrainSaving& saving, bool adapters = false);

// Whether the run ended earlier and left `result`, which all ranks learn; folder: null in all but the first.
Result<bool> ended_earlier(const RunFolder* folder, const std::filesystem::path& result, int64_t first_step,
                           int64_t steps, TrainEngine& trainer);

// At the start: what is left to do, after `first_step` of `steps`.
void print_where_it_begins(const std::filesystem::path& output, bool resume, int64_t first_step);
void print_ended_earlier(const std::filesystem::path& result, int64_t steps);

}  // namespace nibble
