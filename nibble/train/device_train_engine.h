// Trainers on a GPU, for callers that know no GPU code: train/device/ implements these functions. A build without CUDA
// has nibble/no_device.cpp in its place, where each call returns an error.
#pragma once

#include "tensor/device_group.h"
#include "train/memory_plan.h"
#include "train/trainer.h"

namespace nibble {

struct DeviceTrainerOptions {
    TrainerOptions train;
    DeviceChoice device{.cuda = true};
    int64_t rows = 0, seq = 0;  // of a step, at most
    int64_t micro_batch = 0;    // rows; 0: what fits
    Recompute recompute = Recompute::automatic;
    bool reference = false;  // keeps the first weights, for reference_log_probs()
    // Rollouts have operands of their own, of the same parameters: generating().
    std::optional<TrainPrecision> generation;
    // The teacher, in any format and of any family; its weights lie on the GPU, too. cross_entropy is that of `train`,
    // whose own teacher is null.
    std::shared_ptr<const Checkpoint> teacher;
    Sharding sharding = Sharding::states;
    GradientOrder order = GradientOrder::tree;
    std::function<Result<DeviceGroup>()> link;  // replaces NCCL between ranks; for tests
    // Activations share memory with the keys and values of serving() and generating(), which take turns (LentMemory):
    // as much as activations take, and this share of what the plan leaves. none: nothing is shared.
    std::optional<double> lend;
};

// A TrainEngine on a GPU, with what reinforcement learning asks of it.
class DeviceTrainEngine : public TrainEngine {
public:
    // Computes what row_log_probs() does, with the weights that the trainer was created with. Error: they were not kept
    // (DeviceTrainerOptions::reference).
    virtual Status reference_log_probs(std::span<const TrainBatch* const> rows, const OfRow& each) = 0;

    // Returns what serving() does, in the precision of DeviceTrainerOptions::generation. Operands of its products are
    // those of the trainer's creation or of the last renew_generation(); embedding and vectors are always the newest.
    // The scales of an FP8 cache that training does not read belong to this model.
    virtual Result<std::shared_ptr<const LanguageModel>> generating() = 0;
    virtual Status renew_generation() = 0;
    virtual bool generation_sees_neighbours() const = 0;
};

// The pool outlives the trainer. Errors: models and recipes without kernels, a step that does not fit into the device's
// memory (with the sizes).
Result<std::unique_ptr<DeviceTrainEngine>> open_device_trainer(std::shared_ptr<Parameters> parameters,
                                                               const DeviceTrainerOptions& options, ThreadPool& pool);
// Trains adapters (options.train.lora) over the frozen weights of `base`, as Trainer::create_adapters() does; K and V
// are BF16.
Result<std::unique_ptr<DeviceTrainEngine>> open_device_adapter_trainer(std::shared_ptr<const Checkpoint> base,
                                                                       const DeviceTrainerOptions& options,
                                                                       ThreadPool& pool);

}  // namespace nibble
