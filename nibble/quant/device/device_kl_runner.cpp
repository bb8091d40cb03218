#include "model/device/layerwise.h"
#include "quant/kl_runner.h"

namespace nibble {
namespace {

class DeviceKlRunner : public KlRunner {
public:
    DeviceKlRunner(const Checkpoint& source, std::unique_ptr<DeviceLayerwise> layerwise)
        : source_(source), layerwise_(std::move(layerwise)), blocks_(layerwise_->config().blocks.size()) {}

    Status prepare() {
        NIBBLE_TRY(head_, layerwise_->load_head(source_, true));
        NIBBLE_TRY(start_, layerwise_->embed());
        NIBBLE_TRY(last_, layerwise_->copy(*start_));
        NIBBLE_TRY(x_, layerwise_->copy(*start_));
        return whole(source_, *last_);
    }

    Result<double> measure(const Checkpoint& changed) override {
        NIBBLE_CHECK(layerwise_->copy(*start_, *x_));
        NIBBLE_CHECK(whole(changed, *x_));
        NIBBLE_TRY(const DeviceHead head, layerwise_->load_head(changed, true));
        return layerwise_->divergence(*head_, *last_, head, *x_);
    }

    Status begin() override {
        if (!layers_) {
            NIBBLE_TRY(layers_, layerwise_->load(source_, 0, blocks_, true));
            NIBBLE_TRY(before_, layerwise_->copy(*start_));
        }
        return layerwise_->copy(*start_, *before_);
    }

    Result<double> measure_block(const Checkpoint& changed, size_t block) override {
        if (block == blocks_) {
            NIBBLE_TRY(const DeviceHead head, layerwise_->load_head(changed, true));
            return layerwise_->divergence(*head_, *last_, head, *before_);
        }
        NIBBLE_CHECK(layerwise_->copy(*before_, *x_));
        NIBBLE_TRY(const DeviceLayers one, layerwise_->load(changed, block, 1, true));
        NIBBLE_CHECK(layerwise_->forward(one, block, *x_, nullptr));
        for (size_t later = block + 1; later < blocks_; ++later)
            NIBBLE_CHECK(layerwise_->forward(*layers_, later, *x_, nullptr));
        return layerwise_->divergence(*head_, *last_, *head_, *x_);
    }

    Status advance(size_t block) override { return layerwise_->forward(*layers_, block, *before_, nullptr); }

private:
    Status whole(const Checkpoint& from, DeviceStreams& x) {
        for (size_t b = 0; b < blocks_; ++b) {
            NIBBLE_TRY(const DeviceLayers layer, layerwise_->load(from, b, 1, true));
            NIBBLE_CHECK(layerwise_->forward(layer, b, x, nullptr));
        }
        return Ok{};
    }

    const Checkpoint& source_;
    std::unique_ptr<DeviceLayerwise> layerwise_;
    const size_t blocks_;
    std::optional<DeviceHead> head_;
    std::optional<DeviceLayers> layers_;
    std::optional<DeviceStreams> start_, last_, before_, x_;  // last_: input of the source's head
};

}  // namespace

Result<std::unique_ptr<KlRunner>> open_device_kl_runner(const Checkpoint& source, TokenSequences sequences,
                                                        const ScoreOptions& options, ThreadPool& pool) {
    if (options.compute == Compute::f32) return fail("a GPU rounds to BF16 between operators; FP32 runs on the CPU");
    const bool groups = options.method == ScoreMethod::kl;
    NIBBLE_TRY(auto layerwise,
               DeviceLayerwise::create(
                   source, sequences, options.device,
                   {.batch_tokens = options.batch_tokens, .streams = groups ? 4 : 3, .all_blocks = groups}, pool));
    auto runner = std::make_unique<DeviceKlRunner>(source, std::move(layerwise));
    NIBBLE_CHECK(runner->prepare());
    return std::unique_ptr<KlRunner>(std::move(runner));
}

}  // namespace nibble
