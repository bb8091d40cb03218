// The model of a training run: its shapes before there are weights, its first weights, and the trainer on a CPU or GPU.
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

// F32 with recipe fp32, else BF16: the type of published weights.
DType published_type(const TrainPrecision& precision);

// Names and shapes of config.model or config.shape. A random start has no numbers.
Result<std::unique_ptr<Checkpoint>> open_train_model(const TrainConfig& config);
// The teacher's checkpoint, checked to have the tokens of the data; null: there is none.
Result<std::shared_ptr<const Checkpoint>> open_teacher(const TrainConfig& config);

struct TrainerSetup {
    DeviceChoice device;
    std::string kernels;  // of a CPU; empty: the fastest
    TrainCache cache;
    Trace* trace = nullptr;
    RankGroup* ranks = nullptr;  // null: one process
};
// The trainer with its first weights: of config.model, or random ones; with config.lora adapters over them.
Result<std::unique_ptr<TrainEngine>> open_trainer(const TrainConfig& config, const TrainerSetup& setup,
                                                  ThreadPool& pool);

}  // namespace nibble
