// Writes the results of a run: its model, and the same model in the codes of its forward pass.
#pragma once

#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/model_card.h"

#include <cstdint>
#include <filesystem>
#include <string>

namespace nibble {

// Bytes that a run of this model writes at most: the newest checkpoint, the next one while it is written, and the
// model. adapters: checkpoints hold only these, which are small.
int64_t planned_run_bytes(const Checkpoint& model, int64_t checkpoints_kept, bool adapters = false);

// OUTPUT/model-nvfp4
std::filesystem::path codes_folder(const std::filesystem::path& output, Format format);

struct RunExport {
    std::filesystem::path output;  // the run's folder; the last line of its log says what was measured
    std::filesystem::path base;    // the checkpoint that the run began with; empty: random weights
    std::string how;               // "training", "reinforcement learning"
    std::string precision;
    int64_t steps = 0;
    std::string command;   // for the model card
    std::string manifest;  // nibble.json
    bool resumed = false;  // an earlier export is replaced
};

// Writes `model` into the folder `out`. Its format on disk is that of model.dialect().
Status write_run_export(const RunExport& run, const Checkpoint& model, const std::filesystem::path& out,
                        ThreadPool& pool);

}  // namespace nibble
