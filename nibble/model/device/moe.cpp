#include "model/device/moe.h"

#include <algorithm>
#include <utility>

namespace nibble {

Result<std::unique_ptr<DeviceMixer>> DeviceMoe::make(const Moe& moe, const std::string& prefix,
                                                     DeviceWeights& weights) {
    auto m = std::make_unique<DeviceMoe>();
    m->config_ = moe.config();
    m->hidden_ = moe.gate().cols;
    m->width_ = m->config_.latent > 0 ? m->config_.latent : m->hidden_;
    if (m->config_.experts > 1024 || m->config_.top_k > 32)
        return fail("{}: {} experts, {} of them chosen; --device cuda has kernels up to 1024 and 32", prefix,
                    m->config_.experts, m->config_.top_k);
    NIBBLE_TRY(m->gate_, weights.linear(moe.gate()));
    NIBBLE_TRY(m->selection_bias_, weights.vector(moe.selection_bias()));
    NIBBLE_TRY(m->router_scale_, weights.vector(moe.router_scale()));
    NIBBLE_TRY(m->experts_norm_, weights.vector(moe.experts_norm().weight));
    NIBBLE_TRY(m->expert_scale_, weights.vector(moe.expert_scale()));
    if (moe.experts_norm().centered) return fail("{}: experts after LayerNorm have no kernel on --device cuda", prefix);
    m->eps_ = moe.eps();
    if (moe.shared_gate() && moe.to_latent())
        return fail("{}: a gated shared expert next to latent experts has no kernel on --device cuda", prefix);
    if (moe.shared_gate()) {
        NIBBLE_TRY(m->shared_gate_, weights.linear(*moe.shared_gate()));
    }
    if (moe.to_latent()) {
        NIBBLE_TRY(m->to_latent_, weights.linear(*moe.to_latent()));
        NIBBLE_TRY(m->from_latent_, weights.linear(*moe.from_latent()));
    }
    std::vector<const LinearStack*> in;
    std::vector<const Linear*> out;
    for (const auto& expert : moe.experts()) {
        in.push_back(&expert->in());
        out.push_back(&expert->out());
    }
    NIBBLE_TRY(m->in_, weights.experts(in, m->config_.expert.gated && !m->config_.expert.clamp));
    NIBBLE_TRY(m->out_, weights.experts(out));
    if (moe.shared()) {
        NIBBLE_TRY(m->shared_, DeviceMlp::make(*moe.shared(), weights));
    }
    return std::unique_ptr<DeviceMixer>(std::move(m));
}

Result<InputPlan> DeviceMoe::plan(const DeviceStep& step) const {
    if (!one_token(step) || gate_.w4a16 || gate_.activation != ActivationFormat::none || router_scale_ || experts_norm_)
        return InputPlan{};
    NIBBLE_TRY(const bool joint, routes_jointly(step));
    return InputPlan{.inside = joint || cuda::norms_few_rows(gate_.operand)};
}

Result<bool> DeviceMoe::routes_jointly(const DeviceStep& step) const {
    if (!shared_) return false;
    return shared_->takes_side(gate_, step);
}

cuda::RouterConfig DeviceMoe::router() const {
    const bool sigmoid = config_.router == MoeConfig::Router::sigmoid;
    return {.experts = config_.experts,
            .top_k = config_.top_k,
            .groups = config_.groups,
            .kept_groups = config_.kept_groups,
            .sigmoid = sigmoid,
            .round = !sigmoid,
            .normalize = config_.normalize,
            .smallest_sum = config_.smallest_sum,
            .scaling = config_.routed_scaling,
            .sparse_mixer = config_.router == MoeConfig::Router::sparse_mixer,
            .jitter = config_.jitter,
            .expert_scales = expert_scale_};
}

Result<DeviceMoe::Inputs> DeviceMoe::inputs(const DeviceInput& in, DeviceStep& step) const {
    Inputs out{.router = in, .experts = in.x};  // x is ready once the choice is queued, whichever kernel computes it
    const auto normed = [&](const float* weight) -> Result<const std::byte*> {
        NIBBLE_TRY(std::byte * rows, step.scratch.allocate(2 * step.rows * hidden_));
        NIBBLE_CHECK(cuda::add_norm({.tokens = step.rows,
                                     .width = hidden_,
                                     .h = const_cast<std::byte*>(in.x),  // without an update it is only read
                                     .weight = weight,
                                     .eps = eps_,
                                     .out = {rows}},
                                    step.overlap, step.stream));
        return rows;
    };
    if (router_scale_) {
        NIBBLE_TRY(out.router.x, normed(router_scale_));
    }
    if (experts_norm_) {
        NIBBLE_TRY(out.experts, normed(experts_norm_));
    }
    return out;
}

Result<cuda::ExpertChoice> DeviceMoe::choose(const Inputs& inputs, Shared& shared, DeviceStep& step) const {
    const DeviceInput& in = inputs.router;
    const int64_t rows = step.rows, slots = rows * config_.top_k;
    cuda::ExpertChoice choice{.config = router(), .bias = selection_bias_};
    cuda::Routing& r = choice.routing;
    NIBBLE_TRY(float* logits, step.scratch.allocate_array<float>(rows * config_.experts));
    NIBBLE_TRY(r.experts, step.scratch.allocate_array<int32_t>(slots));
    NIBBLE_TRY(r.weights, step.scratch.allocate_array<float>(slots));
    NIBBLE_TRY(r.begin, step.scratch.allocate_array<int32_t>(config_.experts + 1));
    NIBBLE_TRY(r.rows, step.scratch.allocate_array<int32_t>(slots));
    NIBBLE_TRY(r.places, step.scratch.allocate_array<int32_t>(slots));
    NIBBLE_TRY(const bool joint, routes_jointly(step));
    DeviceInput shared_in{.x = inputs.experts};
    if (in.norm.h && joint) {
        shared_in.norm = in.norm, shared_in.side = {&gate_.operand, logits};
    } else if (in.norm.h) {
        NIBBLE_CHECK(cuda::norm_matmul(in.norm, gate_.operand, logits, step.overlap, step.stream));
    } else {
        NIBBLE_CHECK(gate_.forward(in, rows, logits, config_.experts, step));
    }
    if (shared_) {
        NIBBLE_TRY(std::byte * mid, step.scratch.allocate(shared_->mid_bytes(rows)));
        NIBBLE_CHECK(shared_->forward_mid(shared_in, mid, step));
        if (takes_dense(step))
            shared.mid = mid;
        else
            NIBBLE_CHECK(shared_->forward_out(mid, shared.y, step));
    }
    if (chooses_inside(step))
        choice.logits = logits;
    else
        NIBBLE_CHECK(cuda::route(choice.config, logits, selection_bias_, rows, r, step.overlap, step.stream));
    return choice;
}

bool DeviceMoe::one_token(const DeviceStep& step) const {
    const cuda::RouterConfig config{.experts = config_.experts, .top_k = config_.top_k};
    return step.rows == 1 && !step.observer && !config_.weigh_inputs && !config_.expert.clamp &&
           in_.takes_one_token(config) && out_.takes_one_token(config);
}

bool DeviceMoe::takes_dense(const DeviceStep& step) const {
    return one_token(step) && in_.takes_dense(router(), shared_->out());
}

bool DeviceMoe::chooses_inside(const DeviceStep& step) const {
    return one_token(step) && config_.groups == 1 && config_.router != MoeConfig::Router::sparse_mixer &&
           !expert_scale_;
}

// Writes mid [rows.n, intermediate] (BF16).
Status DeviceMoe::activated(const DeviceExpertRows& rows, std::byte* mid, DeviceStep& step) const {
    const bool gated = config_.expert.gated;
    if (activates()) return in_.activated(rows, config_.expert.activation, mid, step);
    const DeviceScope scope(step);
    NIBBLE_TRY(float* in, step.scratch.allocate_array<float>(rows.n * in_.rows));
    NIBBLE_CHECK(in_.forward(rows, in, step));
    return cuda::activate(config_.expert.activation, gated, in, in_.rows, rows.n, config_.expert.intermediate, {mid},
                          step.overlap, step.stream, false, config_.expert.clamp.value_or(ClampedGlu{}));
}

// Shows all rows to the experts one after the other: in each call, one expert's range in `begin` is [0, rows) and the
// others are empty.
Status DeviceMoe::show_all(const std::byte* x, DeviceStep& step) const {
    const DeviceScope scope(step);
    const int64_t rows = step.rows, inner = config_.expert.intermediate, experts = config_.experts;
    NIBBLE_TRY(std::byte * mid, step.scratch.allocate(rows * inner * 2));
    NIBBLE_TRY(int32_t * zeros_and_rows, step.scratch.allocate_array<int32_t>(2 * experts));
    std::vector<int32_t> host(static_cast<size_t>(2 * experts), 0);
    std::fill(host.begin() + experts, host.end(), static_cast<int32_t>(rows));
    NIBBLE_CHECK(copy_to_device(reinterpret_cast<std::byte*>(zeros_and_rows),
                                reinterpret_cast<const std::byte*>(host.data()), 8 * experts, step.stream));
    for (int64_t e = 0; e < experts; ++e) {
        const int32_t* begin = zeros_and_rows + (experts - 1 - e);  // begin[i] = i <= e ? 0 : rows
        const DeviceExpertRows all{.x = x, .n = rows, .begin = begin};
        NIBBLE_CHECK(in_.show(all, step));
        NIBBLE_CHECK(activated(all, mid, step));
        NIBBLE_CHECK(out_.show({.x = mid, .n = rows, .begin = begin}, step));
    }
    return Ok{};
}

bool DeviceMoe::combines(const DeviceStep& step) const {
    return one_token(step) && !shared_gate_ && out_.takes_combine({.experts = config_.experts, .top_k = config_.top_k});
}

DeviceExpertRows DeviceMoe::first_rows(const cuda::ExpertChoice& choice, const std::byte* x, const Shared& shared,
                                       const DeviceStep& step) const {
    DeviceExpertRows rows{.x = x,
                          .rows = choice.routing.rows,
                          .n = step.rows * config_.top_k,
                          .begin = choice.routing.begin,
                          .choice = one_token(step) ? &choice : nullptr};
    if (shared.mid) {
        const DeviceLinear& out = shared_->out();
        rows.dense = {.x = shared.mid, .w = out.records, .factors = out.factors, .y = shared.y};
    }
    return rows;
}

DeviceExpertRows DeviceMoe::second_rows(const cuda::ExpertChoice& choice, const std::byte* mid, const Shared& shared,
                                        float* sum, const DeviceStep& step) const {
    DeviceExpertRows rows{.x = mid,
                          .n = step.rows * config_.top_k,
                          .begin = choice.routing.begin,
                          .routed = !step.observer && activates(),
                          .choice = one_token(step) ? &choice : nullptr};
    if (sum) rows.combine = {.weights = choice.routing.weights, .shared = shared.y, .sum = sum};
    return rows;
}

Status DeviceMoe::run_experts(const cuda::ExpertChoice& choice, const std::byte* x, const Shared& shared, float* y,
                              float* sum, DeviceStep& step) const {
    if (step.observer && step.observer->every_expert()) {
        NIBBLE_CHECK(show_all(x, step));
        DeviceObserver* const observer = std::exchange(step.observer, nullptr);
        Status done = run_experts(choice, x, shared, y, sum, step);
        step.observer = observer;
        return done;
    }
    const DeviceScope scope(step);
    const int64_t slots = step.rows * config_.top_k, inner = config_.expert.intermediate;
    NIBBLE_TRY(std::byte * mid, step.scratch.allocate(slots * inner * 2));
    DeviceExpertRows rows = first_rows(choice, x, shared, step);
    if (config_.weigh_inputs) {
        NIBBLE_TRY(std::byte * weighed, step.scratch.allocate(slots * width_ * 2));
        NIBBLE_CHECK(cuda::weigh_inputs(x, step.rows, width_, config_.top_k, choice.routing, weighed, step.overlap,
                                        step.stream));
        rows.x = weighed, rows.rows = nullptr;
    }
    NIBBLE_CHECK(in_.show(rows, step));
    NIBBLE_CHECK(activated(rows, mid, step));
    const DeviceExpertRows middle = second_rows(choice, mid, shared, sum, step);
    NIBBLE_CHECK(out_.show(middle, step));
    return out_.forward(middle, y, step);
}

Status DeviceMoe::forward(const DeviceInput& in, float* y, DeviceStep& step) const {
    const DeviceScope scope(step);
    NIBBLE_TRY(const Inputs inputs, this->inputs(in, step));
    const std::byte* x = inputs.experts;
    const int64_t rows = step.rows;
    Shared shared;
    if (shared_) {
        NIBBLE_TRY(shared.y, step.scratch.allocate_array<float>(rows * hidden_));
    }
    NIBBLE_TRY(const cuda::ExpertChoice choice, choose(inputs, shared, step));
    NIBBLE_TRY(float* outputs, step.scratch.allocate_array<float>(rows * config_.top_k * width_));
    cuda::CombineExperts combine{
        .tokens = rows, .width = width_, .top_k = config_.top_k, .y = outputs, .weighed = !config_.weigh_inputs};
    if (!to_latent_) {
        const bool combined = combines(step);
        NIBBLE_CHECK(run_experts(choice, x, shared, outputs, combined ? y : nullptr, step));
        if (combined) return Ok{};
        combine.shared = shared.y;
        if (shared_gate_) {
            NIBBLE_TRY(float* gate, step.scratch.allocate_array<float>(rows));
            NIBBLE_CHECK(shared_gate_->forward({.x = x}, rows, gate, 1, step));
            combine.shared_gate = gate;
        }
        combine.sum = y;
        return cuda::combine_experts(combine, choice.routing, step.overlap, step.stream);
    }
    NIBBLE_TRY(float* wide, step.scratch.allocate_array<float>(rows * width_));
    NIBBLE_TRY(std::byte * latent, step.scratch.allocate(rows * width_ * 2));
    NIBBLE_CHECK(to_latent_->forward({.x = x}, rows, wide, width_, step));
    NIBBLE_CHECK(cuda::to_rows(wide, 0, rows, width_, {latent}, step.overlap, step.stream));
    NIBBLE_CHECK(run_experts(choice, latent, shared, outputs, nullptr, step));
    combine.rows = latent;
    NIBBLE_CHECK(cuda::combine_experts(combine, choice.routing, step.overlap, step.stream));
    NIBBLE_CHECK(from_latent_->forward({.x = latent}, rows, y, hidden_, step));
    return shared.y ? cuda::add_rows(y, shared.y, rows * hidden_, step.overlap, step.stream) : Status(Ok{});
}

// Makes the same decisions as choose() and forward(), with addresses that are not read.
Status DeviceMoe::kernels(bool inside, const DeviceStep& step, std::vector<KernelUse>& uses) const {
    auto* const somewhere = reinterpret_cast<std::byte*>(uintptr_t{4096});
    auto* const floats = reinterpret_cast<float*>(somewhere);
    auto* const words = reinterpret_cast<int32_t*>(somewhere);
    NIBBLE_TRY(const bool joint, routes_jointly(step));
    const size_t router_at = uses.size();
    NIBBLE_CHECK(gate_.kernels(step.rows, step, uses));
    if (inside && !joint) uses[router_at].choice = {"matmul_w4a16_m8", "1 token: norm and router in one launch"};
    Shared shared;
    if (shared_) {
        shared.y = floats;
        const size_t at = uses.size();
        NIBBLE_CHECK(shared_->kernels(inside && joint, step, uses));
        if (inside && joint)
            uses[router_at].choice = {uses[at].choice.kernel, "in the launch of the shared expert's product"};
        if (takes_dense(step)) shared.mid = somewhere;
    }
    cuda::ExpertChoice choice{.config = router(), .logits = chooses_inside(step) ? floats : nullptr};
    choice.routing = {words, floats, words, words, words};
    if (to_latent_) NIBBLE_CHECK(to_latent_->kernels(step.rows, step, uses));
    const size_t experts_at = uses.size();
    NIBBLE_CHECK(in_.kernels(first_rows(choice, somewhere, shared, step), activates(), uses));
    if (shared.mid)
        uses[experts_at - 1 - (to_latent_ ? 1 : 0)].choice = {uses[experts_at].choice.kernel,
                                                              "in the launch of the experts' first product"};
    float* const sum = !to_latent_ && combines(step) ? floats : nullptr;
    NIBBLE_CHECK(out_.kernels(second_rows(choice, somewhere, shared, sum, step), false, uses));
    if (from_latent_) NIBBLE_CHECK(from_latent_->kernels(step.rows, step, uses));
    return shared_gate_ ? shared_gate_->kernels(step.rows, step, uses) : Status(Ok{});
}

int64_t DeviceMoe::scratch_bytes(int64_t rows) const {
    const int64_t slots = rows * config_.top_k;
    const int64_t routing = 4 * rows * config_.experts + 16 * slots + 4 * (config_.experts + 1);
    const int64_t experts = slots * (6 * width_ + 4 * in_.rows + 2 * int64_t{config_.expert.intermediate});
    const int64_t dense = rows * (8 * hidden_ + 6 * width_ + 4) + (shared_ ? shared_->scratch_bytes(rows) : 0);
    int64_t products = std::max({gate_.scratch_bytes(rows), in_.scratch_bytes(slots), out_.scratch_bytes(slots)});
    if (to_latent_) products = std::max({products, to_latent_->scratch_bytes(rows), from_latent_->scratch_bytes(rows)});
    return routing + experts + dense + products + 8 * int64_t{config_.experts} + 28 * DeviceArena::alignment;
}

}  // namespace nibble
