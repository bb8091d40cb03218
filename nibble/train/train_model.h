// Opens the model of a training run: its shapes before there are weights, its initial weights, and its trainer on a CPU
// or GPU.
#pragma once

#include "checkpoint/checkpoint.h"
#include "model/parameters.h"
#include "tensor/device.h"
#include "train/cache_scales.h"
#include "train/train_config.h"
#include "train/train_engine.h"

#include <memory>
#include <string>

namespace nibble {

class RankGroup;
class Trace;

// Returns the type of published weights: F32 for the recipe fp32, else BF16.
DType published_type(const TrainPrecision& precision);

// Opens config.model or config.shape for its names and shapes. With a random start it has no numbers.
Result<std::unique_ptr<Checkpoint>> open_train_model(const TrainConfig& config);
// Opens the teacher's checkpoint and checks that its vocabulary fits the data; null: there is no teacher.
Result<std::shared_ptr<const Checkpoint>> open_teacher(const TrainConfig& config);

struct TrainerSetup {
    DeviceChoice device;
    std::string kernels;  // kernel set of a CPU; empty: the fastest
    TrainCache cache;
    Trace* trace = nullptr;
    RankGroup* ranks = nullptr;  // null: a single process
};
// Creates the trainer with its initial weights: those of config.model, or random ones; with config.lora, adapters over
// them.
Result<std::unique_ptr<TrainEngine>> open_trainer(const TrainConfig& config, const TrainerSetup& setup,
                                                  ThreadPool& pool);

}  // namespace nibble
