#include "model/device/model.h"
#include "model/device_model.h"

namespace nibble {

Result<std::unique_ptr<LanguageModel>> open_device_model(std::shared_ptr<const Checkpoint> checkpoint,
                                                         const ModelOptions& options, const DeviceChoice& device,
                                                         ThreadPool& pool) {
    NIBBLE_TRY(auto model, DeviceModel::load(std::move(checkpoint), options, device, pool));
    return std::unique_ptr<LanguageModel>(std::move(model));
}

Result<KernelTable> device_kernel_table(std::shared_ptr<const Checkpoint> checkpoint, const ModelOptions& options,
                                        const DeviceChoice& device, int64_t tokens, ThreadPool& pool) {
    return DeviceModel::kernel_table(std::move(checkpoint), options, device, tokens, pool);
}

}  // namespace nibble
