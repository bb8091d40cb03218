#include "quant/device_calibration.h"

#include "quant/device/calibration_observer.h"
#include "quant/meter.h"

namespace nibble {
namespace {

class WalkCalibration : public DeviceCalibration {
public:
    WalkCalibration(const Plan& plan, const CalibrationOptions& options, std::unique_ptr<DeviceWalk> walk)
        : plan_(plan), options_(options), walk_(std::move(walk)) {}

    Status run(const Pass& pass, const JobHooks& hooks) override {
        DeviceCalibrationObserver observer(plan_, options_, pass.ranges, pass.solver != nullptr, pass.done, *walk_);
        if (pass.quantized) observer.see_quantized(*pass.quantized);
        const size_t blocks = walk_->config().blocks.size();
        NIBBLE_TRY(DeviceStreams x, walk_->embed());
        ProgressMeter meter(hooks, "calibrate", walk_->tokens() * static_cast<int64_t>(blocks) * (pass.solver ? 2 : 1),
                            token_layers);
        for (size_t b = 0; b < blocks; ++b) {
            const std::string name = fmt::format("layer {} of {}", b + 1, blocks);
            NIBBLE_TRY(const DeviceLayers layer, walk_->load(pass.model, b, 1, pass.quantized != nullptr));
            NIBBLE_CHECK(walk_->forward(layer, b, x, &observer, [&](int64_t rows) -> Status {
                if (hooks.should_stop()) return fail(ErrorKind::cancelled, "calibration stopped on request");
                meter.add(rows, name);
                return Ok{};
            }));
            if (pass.solver) meter.add(0, name + ", solving its linears");
            NIBBLE_CHECK(observer.end_block(pass.solver));
            if (pass.solver) meter.add(walk_->tokens(), name);
        }
        if (pass.head) {
            NIBBLE_CHECK(walk_->show_head(pass.model, x, observer));
            NIBBLE_CHECK(observer.end_block(pass.solver));
        }
        meter.finish();
        return Ok{};
    }

    std::string note() const override { return walk_->rounded().text(); }

private:
    const Plan& plan_;
    const CalibrationOptions& options_;
    std::unique_ptr<DeviceWalk> walk_;
};

}  // namespace

Result<std::unique_ptr<DeviceCalibration>> open_device_calibration(const Checkpoint& source, const Plan& plan,
                                                                   std::span<const std::vector<int32_t>> texts,
                                                                   const CalibrationOptions& options,
                                                                   ThreadPool& pool) {
    NIBBLE_TRY(auto walk,
               DeviceWalk::create(source, texts, options.device, {.batch_tokens = options.batch_tokens}, pool));
    return std::unique_ptr<DeviceCalibration>(std::make_unique<WalkCalibration>(plan, options, std::move(walk)));
}

}  // namespace nibble
