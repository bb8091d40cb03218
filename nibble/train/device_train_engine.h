// GPU trainers, for callers without GPU code. train/device/ implements these functions. In a build without CUDA,
// nibble/no_device.cpp implements them and each call returns an error.
#pragma once

#include "tensor/device_group.h"
#include "train/memory_plan.h"
#include "train/trainer.h"

namespace nibble {

struct DeviceTrainerOptions {
    TrainerOptions train;
    DeviceChoice device{.cuda = true};
    int64_t rows = 0, seq = 0;  // maximum per step
    int64_t micro_batch = 0;    // rows; 0: as many as fit in memory
    Recompute recompute = Recompute::automatic;
    bool reference = false;  // keeps a copy of the initial weights for reference_log_probs()
    // If set, rollouts have operands of their own in this precision, made from the same parameters: generating().
    std::optional<TrainPrecision> generation;
    // The teacher, of any format and family. Its weights are on the GPU too. cross_entropy is that of `train`, whose
    // own teacher is null.
    std::shared_ptr<const Checkpoint> teacher;
    Sharding sharding = Sharding::states;
    GradientOrder order = GradientOrder::tree;
    std::function<Result<DeviceGroup>()> link;  // replaces NCCL between ranks in tests
    // If set, activations (of updates) share memory with the keys and values (of rollouts, serving() and generating());
    // they take turns (TimeSharedMemory). The shared memory is as large as the activations plus this share of the
    // memory that the plan leaves free. Absent: nothing is shared.
    std::optional<double> time_shared_part;
};

// A GPU trainer with the functions that reinforcement learning needs.
class DeviceTrainEngine : public TrainEngine {
public:
    // Like row_log_probs(), with the initial weights of the trainer. Error: they were not kept
    // (DeviceTrainerOptions::reference).
    virtual Status reference_log_probs(std::span<const TrainBatch* const> rows, const OfRow& each) = 0;

    // Like serving(), in the precision of DeviceTrainerOptions::generation. The operands of its products are those of
    // the trainer's creation or of the last renew_generation(). Embedding and vectors are always the current ones. The
    // scales of an FP8 cache that training does not use belong to this model.
    virtual Result<std::shared_ptr<const LanguageModel>> generating() = 0;
    virtual Status renew_generation() = 0;
    virtual bool generation_sees_neighbours() const = 0;
};

// The pool must outlive the trainer. Errors: models and recipes without kernels; a step that does not fit in the
// device's memory (with the sizes).
Result<std::unique_ptr<DeviceTrainEngine>> open_device_trainer(std::shared_ptr<Parameters> parameters,
                                                               const DeviceTrainerOptions& options, ThreadPool& pool);
// Trains adapters (options.train.lora) over the frozen weights of `base`, like Trainer::create_adapters(). K and V are
// BF16.
Result<std::unique_ptr<DeviceTrainEngine>> open_device_adapter_trainer(std::shared_ptr<const Checkpoint> base,
                                                                       const DeviceTrainerOptions& options,
                                                                       ThreadPool& pool);

}  // namespace nibble
