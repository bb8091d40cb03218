#include "model/cpu/block.h"

#include "model/weight_source.h"

#include <array>
#include <atomic>
#include <cmath>

namespace nibble {
namespace {

constexpr std::array<std::string_view, std::variant_size_v<MixerConfig>> mixer_names{"attention",
                                                                                     "latent attention",
                                                                                     "MLP",
                                                                                     "experts",
                                                                                     "Mamba-2",
                                                                                     "gated delta net",
                                                                                     "short convolution",
                                                                                     "per-layer input",
                                                                                     "several mixers",
                                                                                     "compressed attention"};

}  // namespace

Error nonfinite(const BlockConfig& config, const Batch& batch, int64_t row, std::string_view what) {
    size_t s = 0;
    while (s + 1 < batch.segments().size() && batch.row(s + 1) <= row) ++s;
    return fail("layer {}, {} ({}): {} in the output at position {} (token {}, row {} of the batch)", config.layer,
                mixer_names[config.mixer.index()], config.prefix, what, batch.positions()[size_t(row)],
                batch.segments()[s].tokens[size_t(row - batch.row(s))], row);
}

Result<Block> Block::load(const ModelConfig& model, const BlockConfig& config, WeightSource& weights) {
    Block block;
    block.config_ = config;
    block.hidden_ = model.hidden;
    if (!config.hyper.empty()) {
        NIBBLE_TRY(block.hyper_, HyperConnection::load(model, config.hyper, weights));
    }
    NIBBLE_TRY(block.norm_, Norm::load(model, config.norm, model.hidden, weights));
    NIBBLE_TRY(block.post_norm_, Norm::load(model, config.post_norm, model.hidden, weights));
    if (!config.output_scale.empty()) {
        NIBBLE_TRY(const auto scale, weights.vector(config.output_scale, 1));
        block.output_scale_ = scale[0];
    }
    NIBBLE_TRY(block.mixer_,
               std::visit([&](const auto& mixer) { return load_mixer(model, config, mixer, weights); }, config.mixer));
    return block;
}

const float* Block::normed(const float* x, int64_t rows, Workspace& work) const {
    if (norm_.empty()) return x;
    const int64_t n = hidden_;
    float* y = work.arena.floats(rows * n);
    work.parallel_rows(rows, n, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) norm_.apply(x + i * n, y + i * n, work);
    });
    return y;
}

Status Block::forward(const Batch& batch, float* x, Workspace& work, Observer* observer) const {
    const Arena::Scope scope(work.arena);
    const ElementwiseKernels& k = *work.elementwise;
    const int64_t rows = batch.rows(), n = hidden_;
    float* mixed = work.arena.floats(rows * n);
    std::atomic<int64_t> bad{INT64_MAX};  // lowest index of an element that is not finite
    const auto check = [&](int64_t row, int64_t width) {
        const int64_t at = k.first_nonfinite(x + row * width, width);
        if (at < 0) return true;
        for (int64_t least = bad; row * width + at < least && !bad.compare_exchange_weak(least, row * width + at);) {
        }
        return false;
    };
    const auto status = [&](int64_t width) -> Status {
        if (bad == INT64_MAX) return Ok{};
        return nonfinite(config_, batch, bad / width, std::isnan(x[bad]) ? "NaN" : "infinity");
    };
    if (!hyper_.empty()) {
        float* joined = work.arena.floats(rows * n);
        const float* mix = hyper_.collapse(x, rows, joined, work);
        NIBBLE_CHECK(mixer_->forward(batch, normed(joined, rows, work), mixed, work, observer));
        hyper_.expand(mix, mixed, rows, x, work);
        for (int64_t i = 0; i < rows && check(i, hyper_.width()); ++i) {
        }
        return status(hyper_.width());
    }
    const float* in = normed(x, rows, work);
    NIBBLE_CHECK(mixer_->forward(batch, in, mixed, work, observer));
    work.parallel_rows(rows, n, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
            if (!post_norm_.empty()) post_norm_.apply(mixed + i * n, mixed + i * n, work);
            if (config_.residual_scale != 1.0f) {
                for (int64_t j = i * n; j < (i + 1) * n; ++j) mixed[j] *= config_.residual_scale;
                if (work.bf16()) k.round_bf16(mixed + i * n, n);
            }
            k.add(mixed + i * n, n, work.bf16(), x + i * n);
            if (output_scale_ != 1.0f) {
                for (int64_t j = i * n; j < (i + 1) * n; ++j) x[j] *= output_scale_;
                if (work.bf16()) k.round_bf16(x + i * n, n);
            }
            if (!check(i, n)) return;
        }
    });
    return status(n);
}

}  // namespace nibble
