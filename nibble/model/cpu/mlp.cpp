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
    NIBBLE_TRY(mlp->in_, weights.stack(parts, hidden, c.bias, WeightSource::Outputs::own));
    NIBBLE_TRY(mlp->out_, weights.linear(prefix + "." + c.down_proj, hidden, c.intermediate, c.bias));
    const std::string first = parts[0].module + ".weight";
    if (const RankShare* share = weights.share(); share && share->divides(first) && !share->whole_or_none(first)) {
        mlp->width_ = share->columns_like(first, c.intermediate);
        mlp->config_.intermediate = static_cast<int>(mlp->width_->own());
    }
    return mlp;
}

Result<std::unique_ptr<Mlp>> Mlp::load_stacked(const std::string& experts, int64_t hidden, const MoeConfig& moe,
                                               int expert, WeightSource& weights) {
    auto mlp = std::make_unique<Mlp>();
    mlp->config_ = moe.expert;
    const MlpConfig& c = moe.expert;
    const int64_t width = c.intermediate;
    WeightSource::Slice slice{experts + ".gate_up_proj", moe.experts, expert, moe.stacked};
    NIBBLE_TRY(Linear in, weights.expert(slice, 2 * width, hidden, c.bias));
    mlp->in_.weight = std::move(in.weight);
    mlp->in_.bias = in.bias;
    mlp->in_.one = true;
    mlp->in_.parts.push_back(std::move(in));
    slice.module = experts + ".down_proj", slice.alternating = false;
    NIBBLE_TRY(mlp->out_, weights.expert(slice, hidden, width, c.bias));
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
    return forward_gathered(out_, width_.get(), mid, n, y, work, observer, batch_rows);
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
