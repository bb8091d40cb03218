// Writes the results of a run: its model, and the same model in the codes of its forward pass.
#pragma once

#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/model_card.h"

#include <cstdint>
#include <filesystem>
#include <string>

namespace nibble {

// Returns an upper bound of the bytes that a run of this model writes: the newest checkpoint, the next one while it is
// written, and the model. adapters: checkpoints contain only adapters, which are small.
int64_t planned_run_bytes(const Checkpoint& model, int64_t checkpoints_kept, bool adapters = false);

// Returns a path such as OUTPUT/model-nvfp4.
std::filesystem::path codes_folder(const std::filesystem::path& output, Format format);

struct RunExport {
    std::filesystem::path output;  // the run's folder, whose log has the measured results
    std::filesystem::path base;    // the checkpoint that the run started from; empty: random weights
    std::string how;               // "training" or "reinforcement learning"
    std::string precision;
    int64_t steps = 0;
    std::string command;   // for the model card
    std::string manifest;  // content of nibble.json
    bool resumed = false;  // replaces an earlier export
};

// Writes `model` to the folder `out` in the format of model.dialect().
Status write_run_export(const RunExport& run, const Checkpoint& model, const std::filesystem::path& out,
                        ThreadPool& pool);

}  // namespace nibble
