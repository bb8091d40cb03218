#include "train/device/device_trainer.h"
#include "train/device_train_engine.h"

namespace nibble {

Result<std::unique_ptr<DeviceTrainEngine>> open_device_trainer(std::shared_ptr<Parameters> parameters,
                                                               const DeviceTrainerOptions& options, ThreadPool& pool) {
    NIBBLE_TRY(auto trainer, DeviceTrainer::create(std::move(parameters), options, pool));
    return std::unique_ptr<DeviceTrainEngine>(std::move(trainer));
}

Result<std::unique_ptr<DeviceTrainEngine>> open_device_adapter_trainer(std::shared_ptr<const Checkpoint> base,
                                                                       const DeviceTrainerOptions& options,
                                                                       ThreadPool& pool) {
    NIBBLE_TRY(auto trainer, DeviceTrainer::create_adapters(std::move(base), options, pool));
    return std::unique_ptr<DeviceTrainEngine>(std::move(trainer));
}

}  // namespace nibble
