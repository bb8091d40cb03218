#include "model/feed_forward.h"

namespace nibble {

Result<FeedForward> FeedForward::load(const MlpConfig& config, const std::string& prefix, int64_t width,
                                      WeightSource& weights) {
    FeedForward f;
    f.config_ = config;
    std::vector<WeightSource::Part> parts;
    if (config.gated) parts.push_back({prefix + "." + config.gate_proj, config.intermediate});
    parts.push_back({prefix + "." + config.up_proj, config.intermediate});
    NIBBLE_TRY(f.in_, weights.stack(parts, width, config.bias));
    NIBBLE_TRY(f.down_, weights.linear(prefix + "." + config.down_proj, width, config.intermediate, config.bias));
    return f;
}

void FeedForward::activate(const float* h, int64_t n, float* a, Workspace& work) const {
    const int64_t width = config_.intermediate, stride = in_.rows();
    work.parallel_rows(n, stride + width, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i)
            work.elementwise->activate(config_.activation, h + i * stride,
                                       config_.gated ? h + i * stride + width : nullptr, width, work.bf16(),
                                       a + i * width);
    });
}

Status FeedForward::forward(const float* x, int64_t n, float* y, Workspace& work, Observer* observer,
                            std::span<const int32_t> batch_rows) const {
    const Arena::Scope scope(work.arena);
    float* h = work.arena.floats(n * in_.rows());
    float* a = work.arena.floats(n * config_.intermediate);
    NIBBLE_CHECK(in_.forward(x, n, h, work, observer, batch_rows));
    activate(h, n, a, work);
    return down_.forward(a, n, y, work, observer, batch_rows);
}

void FeedForward::append_linears(std::vector<const Linear*>& out) const {
    for (const Linear& part : in_.parts) out.push_back(&part);
    out.push_back(&down_);
}

}  // namespace nibble
