#include "quant/device_calibration.h"

#include "quant/device/calibration_observer.h"
#include "quant/meter.h"

namespace nibble {
namespace {

class LayerwiseCalibration : public DeviceCalibration {
public:
    LayerwiseCalibration(const Plan& plan, const CalibrationOptions& options,
                         std::unique_ptr<DeviceLayerwise> layerwise)
        : plan_(plan), options_(options), layerwise_(std::move(layerwise)) {}

    Status run(const Pass& pass, const JobHooks& hooks) override {
        DeviceCalibrationObserver observer(plan_, options_, pass.ranges, pass.solver != nullptr, pass.done,
                                           *layerwise_);
        if (pass.quantized) observer.see_quantized(*pass.quantized);
        const size_t blocks = layerwise_->config().blocks.size();
        NIBBLE_TRY(DeviceStreams x, layerwise_->embed());
        ProgressMeter meter(hooks, "calibrate",
                            layerwise_->tokens() * static_cast<int64_t>(blocks) * (pass.solver ? 2 : 1), token_layers);
        for (size_t b = 0; b < blocks; ++b) {
            const std::string name = fmt::format("layer {} of {}", b + 1, blocks);
            NIBBLE_TRY(const DeviceLayers layer, layerwise_->load(pass.model, b, 1, pass.quantized != nullptr));
            NIBBLE_CHECK(layerwise_->forward(layer, b, x, &observer, [&](int64_t rows) -> Status {
                if (hooks.should_stop()) return fail(ErrorKind::cancelled, "calibration stopped on request");
                meter.add(rows, name);
                return Ok{};
            }));
            if (pass.solver) meter.add(0, name + ", solving its linears");
            NIBBLE_CHECK(observer.end_block(pass.solver));
            if (pass.solver) meter.add(layerwise_->tokens(), name);
        }
        if (pass.head) {
            NIBBLE_CHECK(layerwise_->show_head(pass.model, x, observer));
            NIBBLE_CHECK(observer.end_block(pass.solver));
        }
        meter.finish();
        return Ok{};
    }

    std::string note() const override { return layerwise_->rounded().text(); }

private:
    const Plan& plan_;
    const CalibrationOptions& options_;
    std::unique_ptr<DeviceLayerwise> layerwise_;
};

}  // namespace

Result<std::unique_ptr<DeviceCalibration>> open_device_calibration(const Checkpoint& source, const Plan& plan,
                                                                   std::span<const std::vector<int32_t>> texts,
                                                                   const CalibrationOptions& options,
                                                                   ThreadPool& pool) {
    NIBBLE_TRY(auto layerwise,
               DeviceLayerwise::create(source, texts, options.device, {.batch_tokens = options.batch_tokens}, pool));
    return std::unique_ptr<DeviceCalibration>(
        std::make_unique<LayerwiseCalibration>(plan, options, std::move(layerwise)));
}

}  // namespace nibble
