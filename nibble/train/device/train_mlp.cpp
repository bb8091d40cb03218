// kept: the output of the first product, rounded to BF16.
#include "train/device/train_mlp.h"

#include <algorithm>

namespace nibble {
namespace {

class TrainMlp : public TrainMixer {
public:
    TrainMlp(const MlpConfig& config, TrainLinear in, TrainLinear out)
        : config_(config), in_(std::move(in)), out_(std::move(out)) {}

    Result<TrainMixerSizes> sizes(int64_t n) const override {
        return TrainMixerSizes{.kept = {2 * n * in_.rows()},
                               .forward = whole(2 * n * in_.rows()) + whole(in_.rounded_bytes(n)) +
                                          whole(mid_bytes(n)) + whole(4) + whole(out_.rounded_bytes(n)),
                               .backward = 2 * whole(mid_bytes(n)) + whole(2 * n * in_.rows()),
                               .workspace = std::max(in_.workspace(), out_.workspace())};
    }
    Status forward(const std::byte* x, std::span<std::byte* const> kept, bool keep, std::byte* y,
                   TrainWork& work) const override;
    Status backward(const std::byte* x, std::span<std::byte* const> kept, const std::byte* dy, std::byte* dx,
                    float* gradient, TrainWork& work) const override;
    bool reads_amax(int64_t n) const override { return in_.reads_amax(n); }
    Status publish(const std::byte* published, const Stream& stream) const override {
        NIBBLE_CHECK(in_.publish(published, stream));
        return out_.publish(published, stream);
    }

private:
    int64_t mid_bytes(int64_t n) const { return 2 * padded_rows(n) * config_.intermediate; }

    MlpConfig config_;
    TrainLinear in_, out_;
};

Status TrainMlp::forward(const std::byte* x, std::span<std::byte* const> kept, bool keep, std::byte* y,
                         TrainWork& work) const {
    DeviceStep& step = work.step;
    const DeviceScope scope(step);
    const int64_t n = step.rows;
    std::byte* in = kept[0];
    if (!keep) {
        NIBBLE_TRY(in, step.scratch.allocate(2 * n * in_.rows()));
    }
    NIBBLE_CHECK(in_.forward_rounded(x, n, in, work, work.amax));
    if (!y) return Ok{};
    NIBBLE_TRY(std::byte * mid, step.scratch.allocate(mid_bytes(n)));
    float* amax = nullptr;
    if (out_.reads_amax(n)) {
        NIBBLE_TRY(amax, step.scratch.allocate_array<float>(1));
        NIBBLE_CHECK(fill_device(reinterpret_cast<std::byte*>(amax), 0, 4, step.stream));
    }
    NIBBLE_CHECK(cuda::activate(config_.activation, config_.gated, in, n, config_.intermediate, {mid}, step.overlap,
                                step.stream, amax));
    return out_.forward_rounded(mid, n, y, work, amax);
}

Status TrainMlp::backward(const std::byte* x, std::span<std::byte* const> kept, const std::byte* dy, std::byte* dx,
                          float* gradient, TrainWork& work) const {
    DeviceStep& step = work.step;
    const DeviceScope scope(step);
    const int64_t n = step.rows;
    NIBBLE_TRY(std::byte * mid, step.scratch.allocate(mid_bytes(n)));
    NIBBLE_TRY(std::byte * d_mid, step.scratch.allocate(mid_bytes(n)));
    NIBBLE_TRY(std::byte * d_in, step.scratch.allocate(2 * n * in_.rows()));
    if (out_.reads_inputs_back())  // otherwise the backward pass of the activation writes it first
        NIBBLE_CHECK(cuda::activate(config_.activation, config_.gated, kept[0], n, config_.intermediate, {mid},
                                    step.overlap, step.stream));
    const auto through_activation = [&] {
        return cuda::activate_backward({.activation = config_.activation,
                                        .gated = config_.gated,
                                        .tokens = n,
                                        .width = config_.intermediate,
                                        .in = kept[0],
                                        .d_mid = d_mid,
                                        .d_in = d_in,
                                        .mid = mid},
                                       step.stream);
    };
    NIBBLE_CHECK(out_.backward(dy, mid, n, d_mid, gradient, false, work, through_activation));
    return in_.backward(d_in, x, n, dx, gradient, false, work);
}

}  // namespace

Result<std::unique_ptr<TrainMixer>> make_train_mlp(DeviceMlp& mlp, std::span<const FlatMatrix> units,
                                                   const TrainVectors& vectors) {
    NIBBLE_TRY(TrainLinear in, TrainLinear::of(units[0], mlp.in(), vectors));
    return std::unique_ptr<TrainMixer>(
        std::make_unique<TrainMlp>(mlp.config(), std::move(in), TrainLinear(units[1], mlp.out(), vectors)));
}

Result<std::unique_ptr<TrainMixer>> make_train_mixer(const TrainMixerParts& parts, const MlpConfig&) {
    return make_train_mlp(static_cast<DeviceMlp&>(*parts.layer.mixer), parts.units, parts.vectors);
}

}  // namespace nibble
