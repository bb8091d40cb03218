// Mamba-2. kept: the output of in_proj, rounded to BF16; the input of out_proj.
#include "kernels/ssm_backward_cuda.h"
#include "model/device/mamba.h"
#include "train/device/train_mixer.h"

#include <algorithm>

namespace nibble {
namespace {

class TrainMamba : public TrainMixer {
public:
    static Result<std::unique_ptr<TrainMixer>> make(const TrainMixerParts& parts, const MambaConfig& config);

    Result<TrainMixerSizes> sizes(int64_t n) const override;
    Status forward(const std::byte* x, std::span<std::byte* const> kept, bool keep, std::byte* y,
                   TrainWork& work) const override;
    Status backward(const std::byte* x, std::span<std::byte* const> kept, const std::byte* dy, std::byte* dx,
                    float* gradient, TrainWork& work) const override;
    Status publish(const std::byte* published, const Stream& stream) const override;

private:
    std::string prefix_;
    size_t index_ = 0;  // number of the block
    const DeviceMamba* engine_ = nullptr;
    TrainLinear in_, out_;
    // Offsets in the flat arrays; -1: frozen, or a convolution without biases. The pointers are the FP32 values of the
    // first two.
    int64_t conv_weight_ = 0, a_log_ = 0, conv_bias_ = -1, d_ = 0, dt_bias_ = 0, norm_ = 0;
    const float *conv_weight_values_ = nullptr, *a_log_values_ = nullptr;
};

Result<std::unique_ptr<TrainMixer>> TrainMamba::make(const TrainMixerParts& parts, const MambaConfig& config) {
    auto t = std::make_unique<TrainMamba>();
    auto& engine = static_cast<DeviceMamba&>(*parts.layer.mixer);
    const TrainVectors& vectors = parts.vectors;
    t->prefix_ = parts.layer.config.prefix;
    t->index_ = static_cast<size_t>(parts.layer.config.index);
    t->engine_ = &engine;
    t->in_ = TrainLinear(parts.units[0], engine.in_proj(), vectors);
    t->out_ = TrainLinear(parts.units[1], engine.out_proj(), vectors);
    const auto place = [&](const char* name) { return vectors.place(t->prefix_ + name); };
    NIBBLE_TRY(t->conv_weight_, place(".conv1d.weight"));
    if (config.conv_bias) {
        NIBBLE_TRY(t->conv_bias_, place(".conv1d.bias"));
    }
    NIBBLE_TRY(t->a_log_, place(".A_log"));
    NIBBLE_TRY(t->d_, place(".D"));
    NIBBLE_TRY(t->dt_bias_, place(".dt_bias"));
    NIBBLE_TRY(t->norm_, place(".norm.weight"));
    if (t->a_log_ < 0) return std::unique_ptr<TrainMixer>(std::move(t));
    t->conv_weight_values_ = vectors.at(t->conv_weight_);
    t->a_log_values_ = vectors.at(t->a_log_);
    // The engine has its own copies of the convolution's weights and of a; publish() writes them.
    DeviceMamba::Vectors read = engine.vectors();
    if (t->conv_bias_ >= 0) read.conv_bias = vectors.at(t->conv_bias_);
    read.d = vectors.at(t->d_);
    read.dt_bias = vectors.at(t->dt_bias_);
    read.norm = vectors.at(t->norm_);
    engine.use_vectors(read);
    return std::unique_ptr<TrainMixer>(std::move(t));
}

Result<TrainMixerSizes> TrainMamba::sizes(int64_t n) const {
    const cuda::MambaShape& shape = engine_->shape();
    if (!cuda::has_mamba_backward(shape))
        return fail("--device cuda trains Mamba-2 of up to 128 dimensions a head and 128 states ({})", prefix_);
    const int64_t inner = whole(2 * n * shape.inner()), wide = whole(2 * n * in_.rows());
    return TrainMixerSizes{.kept = {2 * n * in_.rows(), 2 * n * shape.inner()},
                           .forward = whole(4 * n * in_.rows()) + whole(cuda::mamba_workspace_bytes(shape, n)) +
                                      whole(out_.rounded_bytes(n)),
                           .backward = inner + wide + whole(cuda::mamba_backward_workspace(shape, n)),
                           .workspace = std::max(in_.workspace(), out_.workspace())};
}

Status TrainMamba::forward(const std::byte* x, std::span<std::byte* const> kept, bool keep, std::byte* y,
                           TrainWork& work) const {
    DeviceStep& step = work.step;
    const DeviceScope scope(step);
    const int64_t n = step.rows;
    NIBBLE_TRY(float* projected, step.scratch.allocate_array<float>(n * in_.rows()));
    NIBBLE_CHECK(in_.forward(x, n, projected, 0, work));
    if (keep) NIBBLE_CHECK(cuda::to_rows(projected, 0, n, in_.rows(), {kept[0]}, step.overlap, step.stream));
    NIBBLE_CHECK(engine_->mix(projected, kept[1], step));
    return y ? out_.forward_rounded(kept[1], n, y, work) : Status(Ok{});
}

Status TrainMamba::backward(const std::byte* x, std::span<std::byte* const> kept, const std::byte* dy, std::byte* dx,
                            float* gradient, TrainWork& work) const {
    DeviceStep& step = work.step;
    const DeviceScope scope(step);
    const cuda::MambaShape& shape = engine_->shape();
    const DeviceMamba::Vectors& v = engine_->vectors();
    const int64_t n = step.rows;
    NIBBLE_TRY(std::byte * d_mixed, step.scratch.allocate(2 * n * shape.inner()));
    NIBBLE_TRY(std::byte * d_projected, step.scratch.allocate(2 * n * in_.rows()));
    NIBBLE_TRY(std::byte * workspace, step.scratch.allocate(cuda::mamba_backward_workspace(shape, n)));
    NIBBLE_CHECK(out_.backward(dy, kept[1], n, d_mixed, gradient, false, work));
    NIBBLE_CHECK(cuda::mamba_backward({.shape = shape,
                                       .tokens = n,
                                       .segments = static_cast<int>(step.segments),
                                       .list = step.blocks[index_].segments,
                                       .first = work.first,
                                       .projected = kept[0],
                                       .conv_weight = v.conv_weight,
                                       .conv_bias = v.conv_bias,
                                       .a = v.a,
                                       .d = v.d,
                                       .dt_bias = v.dt_bias,
                                       .norm = v.norm,
                                       .dt_min = engine_->dt_min(),
                                       .eps = engine_->eps(),
                                       .d_mixed = d_mixed,
                                       .d_projected = d_projected,
                                       .d_conv_weight = gradient_at(work.of_vectors, conv_weight_),
                                       .d_conv_bias = gradient_at(work.of_vectors, conv_bias_),
                                       .d_a_log = gradient_at(work.of_vectors, a_log_),
                                       .d_d = gradient_at(work.of_vectors, d_),
                                       .d_dt_bias = gradient_at(work.of_vectors, dt_bias_),
                                       .d_norm = gradient_at(work.of_vectors, norm_),
                                       .workspace = workspace},
                                      step.stream)
                     .within(prefix_));
    return in_.backward(d_projected, x, n, dx, gradient, false, work);
}

Status TrainMamba::publish(const std::byte* published, const Stream& stream) const {
    const DeviceMamba::Vectors& v = engine_->vectors();
    if (a_log_ >= 0)
        NIBBLE_CHECK(cuda::mamba_parameters(engine_->shape(), conv_weight_values_, a_log_values_,
                                            const_cast<float*>(v.conv_weight), const_cast<float*>(v.a), stream));
    NIBBLE_CHECK(in_.publish(published, stream));
    return out_.publish(published, stream);
}

}  // namespace

Result<std::unique_ptr<TrainMixer>> make_train_mixer(const TrainMixerParts& parts, const MambaConfig& config) {
    return TrainMamba::make(parts, config);
}

}  // namespace nibble
