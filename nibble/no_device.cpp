// The boundary between the program and GPU code in a build without CUDA. With CUDA these functions are implemented in
// tensor/cuda/, model/device/, train/device/, quant/device/ and gpu_bench/; here each of them returns the same error.
#include "gpu_bench/kernels.h"
#include "gpu_bench/quantize.h"
#include "model/device_model.h"
#include "quant/device_calibration.h"
#include "quant/device_workers.h"
#include "quant/kl_runner.h"
#include "tensor/device.h"
#include "train/device_train_engine.h"

namespace nibble {
namespace {

Error no_device() {
    return fail(ErrorKind::device, "this build has no CUDA (configure with -DNIBBLE_CUDA=ON); use --device cpu");
}

}  // namespace

Result<std::vector<DeviceInfo>> list_devices() { return no_device(); }
Result<DeviceInfo> open_device(const DeviceChoice& choice) {
    return choice.cuda ? no_device() : fail(ErrorKind::device, "device cpu is not a GPU");
}
Result<DeviceMemory> device_memory(int) { return no_device(); }
Status limit_device_memory(int, double) { return no_device(); }

Result<std::unique_ptr<LanguageModel>> open_device_model(std::shared_ptr<const Checkpoint>, const ModelOptions&,
                                                         const DeviceChoice&, ThreadPool&) {
    return no_device();
}
Result<KernelTable> device_kernel_table(std::shared_ptr<const Checkpoint>, const ModelOptions&, const DeviceChoice&,
                                        int64_t, ThreadPool&) {
    return no_device();
}

Result<std::unique_ptr<DeviceTrainEngine>> open_device_trainer(std::shared_ptr<Parameters>, const DeviceTrainerOptions&,
                                                               ThreadPool&) {
    return no_device();
}
Result<std::unique_ptr<DeviceTrainEngine>> open_device_adapter_trainer(std::shared_ptr<const Checkpoint>,
                                                                       const DeviceTrainerOptions&, ThreadPool&) {
    return no_device();
}

Result<std::unique_ptr<PanelWorkers>> open_device_workers(const DeviceChoice&, const Checkpoint&, const Plan&, int) {
    return no_device();
}
Result<std::unique_ptr<DeviceCalibration>> open_device_calibration(const Checkpoint&, const Plan&,
                                                                   std::span<const std::vector<int32_t>>,
                                                                   const CalibrationOptions&, ThreadPool&) {
    return no_device();
}
Result<std::unique_ptr<KlRunner>> open_device_kl_runner(const Checkpoint&, TokenSequences, const ScoreOptions&,
                                                        ThreadPool&) {
    return no_device();
}

Status bench::run_kernel_bench(const KernelBench&, std::FILE*) { return no_device(); }
Result<bool> bench::run_device_bench(const DeviceBench&, std::FILE*, Json&) { return no_device(); }

}  // namespace nibble
