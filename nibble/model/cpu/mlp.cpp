// Computes down(act(gate(x)) * up(x)), or down(act(up(x))).
#include "model/cpu/mlp.h"

#include "model/weight_source.h"

#include <vector>

namespace nibble {

Result<std::unique_ptr<Mlp>> Mlp::load(const std::string& prefix, int64_t hidden, const MlpConfig& c,
                                       WeightSource& weights) {
    auto mlp = std::make_unique<Mlp>();
    mlp->config_ = c;
    std::vector<WeightSource::Part> parts;
    if (c.gated) parts.push_back({prefix + "." + c.gate_proj, c.intermediate});
    parts.push_back({prefix + "." + c.up_proj, c.intermediate});
    if (!c.gate_up_proj.empty()) parts = {{prefix + "." + c.gate_up_proj, 2 * int64_t{c.intermediate}}};
    NIBBLE_TRY(mlp->in_, weights.stack(parts, hidden, c.bias));
    NIBBLE_TRY(mlp->out_, weights.linear(prefix + "." + c.down_proj, hidden, c.intermediate, c.bias));
    return mlp;
}

Result<std::unique_ptr<Mlp>> Mlp::load_stacked(const std::string& experts, int64_t hidden, const MoeConfig& moe,
                                               int expert, WeightSource& weights) {
    auto mlp = std::make_unique<Mlp>();
    mlp->config_ = moe.expert;
    const int64_t width = moe.expert.intermediate;
    const std::string prefix = fmt::format("{}.{}.", experts, expert);
    const auto slice = [&](const char* stack, int64_t outputs, int64_t first, int64_t step) {
        return WeightSource::Slice{.tensor = fmt::format("{}.{}", experts, stack),
                                   .bias = fmt::format("{}.{}_bias", experts, stack),
                                   .experts = moe.experts,
                                   .expert = expert,
                                   .outputs = outputs,
                                   .first = first,
                                   .step = step};
    };
    const WeightSource::Part in[] = {{prefix + "gate_proj", width, slice("gate_up_proj", 2 * width, 0, 2)},
                                     {prefix + "up_proj", width, slice("gate_up_proj", 2 * width, 1, 2)}};
    const WeightSource::Part out{prefix + "down_proj", hidden, slice("down_proj", hidden, 0, 1)};
    NIBBLE_TRY(mlp->in_, weights.stack(in, hidden, moe.expert.bias));
    NIBBLE_TRY(LinearStack down, weights.stack({&out, 1}, width, moe.expert.bias));
    mlp->out_ = std::move(down.parts[0]);
    mlp->out_.weight = std::move(down.weight);
    return mlp;
}

void Mlp::scale_gate(float* in, int64_t n, bool bf16, Workspace& work) const {
    if (config_.gate_scale == 1.0f) return;
    const int64_t width = config_.intermediate, stride = in_.rows();
    work.parallel_rows(n, width, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
            for (int64_t j = i * stride; j < i * stride + width; ++j) in[j] *= config_.gate_scale;
            if (bf16) work.elementwise->round_bf16(in + i * stride, width);
        }
    });
}

void Mlp::activate(const float* in, int64_t n, float* mid, Workspace& work) const {
    const int64_t width = config_.intermediate, stride = in_.rows();
    work.parallel_rows(n, 4 * width, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
            const float* row = in + i * stride;
            if (config_.clamp) {
                work.elementwise->clamped_glu(*config_.clamp, row, row + width, width, work.bf16(), mid + i * width);
                continue;
            }
            work.elementwise->activate(config_.activation, row, config_.gated ? row + width : nullptr, width,
                                       work.bf16(), mid + i * width);
        }
    });
}

Status Mlp::forward_rows(const float* x, int64_t n, float* y, Workspace& work, Observer* observer,
                         std::span<const int32_t> batch_rows) const {
    const Arena::Scope scope(work.arena);
    float* mid = work.arena.floats(n * config_.intermediate);
    const bool hooked = work.products && (work.products->replaces(in_.parts) || work.products->adds(in_.parts));
    if (config_.gated && !config_.clamp && config_.gate_scale == 1.0f && in_.can_gate() && !hooked) {
        NIBBLE_CHECK(in_.forward_gated(config_.activation, x, n, mid, work, observer, batch_rows));
    } else {
        float* in = work.arena.floats(n * in_.rows());
        NIBBLE_CHECK(in_.forward(x, n, in, work, observer, batch_rows));
        scale_gate(in, n, work.bf16(), work);
        activate(in, n, mid, work);
    }
    return out_.forward(mid, n, y, work, observer, batch_rows);
}

Status Mlp::forward(const Batch& batch, const float* x, float* y, Workspace& work, Observer* observer) const {
    return forward_rows(x, batch.rows(), y, work, observer, {});
}

std::vector<const Linear*> Mlp::linears() const {
    std::vector<const Linear*> list;
    for (const Linear& part : in_.parts) list.push_back(&part);
    list.push_back(&out_);
    return list;
}

std::vector<std::span<const Linear>> Mlp::units() const { return {in_.parts, {&out_, 1}}; }

Result<std::unique_ptr<Mixer>> load_mixer(const ModelConfig& model, const BlockConfig& block, const MlpConfig& config,
                                          WeightSource& weights) {
    NIBBLE_TRY(auto mlp, Mlp::load(block.prefix, model.hidden, config, weights));
    return std::unique_ptr<Mixer>(std::move(mlp));
}

}  // namespace nibble
