// A mixture of experts. The host does not wait for the number of tokens per expert, which products read on the device.
//
// kept: the router's logits and choice; the outputs of the experts' first products in sorted order, rounded to BF16;
// the buffers of the shared expert; for experts with a latent width, their inputs and the sum of their outputs.
#include "kernels/moe_backward_cuda.h"
#include "model/device/moe.h"
#include "train/device/cast_operand.h"
#include "train/device/device_recipe.h"
#include "train/device/frozen_experts.h"
#include "train/device/train_mlp.h"

#include <algorithm>

namespace nibble {
namespace {

// The same linear of all experts: grouped products, products of a recipe (expert by expert), or adapters over frozen
// weights.
class TrainExperts {
public:
    TrainExperts() = default;
    static Result<TrainExperts> of(const FlatMatrix& weights, const DeviceExperts& engine) {
        if (!engine.other && (engine.parts.size() != 1 || engine.parts[0].w4a16))
            return fail("{}: the experts do not multiply as one product", weights.name);
        if (weights.bias >= 0) return fail("--device cuda does not train experts with biases yet ({})", weights.name);
        TrainExperts t;
        t.weights_ = weights;
        t.engine_ = &engine;
        t.frozen_ = static_cast<const FrozenExperts*>(engine.other);
        for (const DeviceProduct* p : engine.parts[0].others)
            t.products_.push_back(static_cast<const RecipeProduct*>(p));
        return t;
    }
    bool quantized() const { return !products_.empty(); }
    // Scratch memory for products of this many slots.
    int64_t forward_bytes(int64_t slots, bool sorted) const {
        if (frozen_) return frozen_->scratch_bytes(slots);
        return quantized() && !sorted ? whole(2 * slots * cols()) : 0;
    }
    // n: maximum number of rows per expert.
    int64_t back_bytes(int64_t n, int64_t slots) const {
        if (frozen_) return frozen_->back_scratch_bytes(slots);
        const int64_t of_inputs = whole(2 * expert_rows(n) * cols()), of_outputs = whole(2 * expert_rows(n) * rows());
        return quantized() ? of_outputs + (reads_inputs_back() ? 2 : 1) * of_inputs : 0;
    }
    bool reads_inputs_back() const { return quantized() && products_[0]->reads_inputs_back(); }
    int64_t rows() const { return engine_->rows; }
    int64_t cols() const { return engine_->cols; }

    Status forward(const DeviceExpertRows& in, float* y, TrainWork& work) const {
        return engine_->forward(in, y, work.step);
    }
    // begin: on the device; host: the same on the host, if products are quantized.
    struct Rows {
        int64_t slots = 0;
        const int32_t* begin = nullptr;
        std::vector<int32_t> host;
    };
    // x: input of the forward product, sorted; not read unless reads_inputs_back().
    Status input_gradient(const std::byte* dy, const std::byte* x, const Rows& of, std::byte* dx,
                          TrainWork& work) const {
        if (frozen_) return frozen_->input_gradient(dy, of.slots, of.begin, dx, work);
        if (quantized()) return quantized_input_gradient(dy, x, of, dx, work);
        const auto& [slots, begin, host] = of;
        return cuda::experts_input_gradient(shape(slots), begin, dy, work.published + 2 * weights_.at, dx,
                                            work.step.stream)
            .within(weights_.name);
    }
    Status weight_gradient(const std::byte* dy, const std::byte* x, const Rows& of, float* gradient,
                           TrainWork& work) const {
        if (frozen_) return frozen_->weight_gradient(dy, x, of.slots, of.begin, gradient, work);
        if (quantized()) return quantized_weight_gradient(dy, x, of, gradient, work);
        const auto& [slots, begin, host] = of;
        return cuda::experts_weight_gradient(shape(slots), begin, dy, x, gradient + weights_.at, work.step.stream)
            .within(weights_.name);
    }
    Status publish(const std::byte* published, const Stream& stream) const {
        if (frozen_) return frozen_->publish(published, stream);
        for (const RecipeProduct* p : products_) NIBBLE_CHECK(p->publish(published, stream));
        if (quantized()) return Ok{};
        return cuda::experts_operands(shape(0), published + 2 * weights_.at,
                                      const_cast<std::byte*>(engine_->parts[0].weights.first.tiles), stream)
            .within(weights_.name);
    }

private:
    cuda::ExpertsShape shape(int64_t slots) const {
        return {.experts = static_cast<int>(engine_->experts), .slots = slots, .rows = rows(), .cols = cols()};
    }

    // Returns rows [first, first + n) of x [.., width], padded with zeros.
    static Result<std::byte*> padded(const std::byte* x, int64_t first, int64_t n, int64_t width, DeviceStep& step) {
        const int64_t all = expert_rows(n);
        NIBBLE_TRY(std::byte * to, step.scratch.allocate(2 * all * width));
        NIBBLE_CHECK(copy_on_device(to, x + 2 * first * width, 2 * n * width, step.stream));
        if (all > n) NIBBLE_CHECK(fill_device(to + 2 * n * width, 0, 2 * (all - n) * width, step.stream));
        return to;
    }
    Status quantized_input_gradient(const std::byte* dy, const std::byte* x, const Rows& of, std::byte* dx,
                                    TrainWork& work) const {
        for (size_t e = 0; e < products_.size(); ++e) {
            const int64_t first = of.host[e], n = of.host[e + 1] - first;
            if (n == 0) continue;
            const DeviceScope scope(work.step);
            NIBBLE_TRY(const std::byte* own, padded(dy, first, n, rows(), work.step));
            NIBBLE_TRY(std::byte * to, work.step.scratch.allocate(2 * expert_rows(n) * cols()));
            const std::byte* own_x = nullptr;
            if (reads_inputs_back()) {
                NIBBLE_TRY(own_x, padded(x, first, n, cols(), work.step));
            }
            NIBBLE_CHECK(products_[e]->input_gradient(own, own_x, expert_rows(n), to, work));
            NIBBLE_CHECK(copy_on_device(dx + 2 * first * cols(), to, 2 * n * cols(), work.step.stream));
        }
        return Ok{};
    }
    Status quantized_weight_gradient(const std::byte* dy, const std::byte* x, const Rows& of, float* gradient,
                                     TrainWork& work) const {
        for (size_t e = 0; e < products_.size(); ++e) {
            const int64_t first = of.host[e], n = of.host[e + 1] - first;
            const FlatMatrix& weight = products_[e]->weight();
            if (n == 0) {
                NIBBLE_CHECK(fill_device(reinterpret_cast<std::byte*>(gradient + weight.at), 0, 4 * weight.elements(),
                                         work.step.stream));
                continue;
            }
            const DeviceScope scope(work.step);
            NIBBLE_TRY(const std::byte* own_dy, padded(dy, first, n, rows(), work.step));
            NIBBLE_TRY(const std::byte* own_x, padded(x, first, n, cols(), work.step));
            NIBBLE_CHECK(products_[e]->weight_gradient(own_dy, own_x, expert_rows(n), gradient, false, work));
        }
        return Ok{};
    }

    FlatMatrix weights_;
    const DeviceExperts* engine_ = nullptr;
    std::vector<const RecipeProduct*> products_;  // one per expert, if a recipe quantizes them
    const FrozenExperts* frozen_ = nullptr;       // set if adapters are trained
};

class TrainMoe : public TrainMixer {
public:
    static Result<std::unique_ptr<TrainMixer>> make(const TrainMixerParts& parts, const MoeConfig& config);

    Result<TrainMixerSizes> sizes(int64_t n) const override;
    Status forward(const std::byte* x, std::span<std::byte* const> kept, bool keep, std::byte* y,
                   TrainWork& work) const override;
    Status backward(const std::byte* x, std::span<std::byte* const> kept, const std::byte* dy, std::byte* dx,
                    float* gradient, TrainWork& work) const override;
    Status publish(const std::byte* published, const Stream& stream) const override;

private:
    enum Buffer : size_t { logits, experts, weights, begin, rows, places, wide, latent, sum, shared };
    static cuda::Routing routing_of(std::span<std::byte* const> kept);
    // Computes dx of the experts' inputs from dy of the sum of their outputs; both [tokens, width].
    Status experts_backward(const std::byte* x, std::span<std::byte* const> kept, const std::byte* dy, std::byte* dx,
                            float* d_weights, float* gradient, TrainWork& work) const;

    MoeConfig config_;
    int64_t hidden_ = 0, width_ = 0;  // width_: of the experts' inputs
    DeviceMoe* engine_ = nullptr;
    TrainLinear gate_, to_latent_, from_latent_;
    TrainExperts in_, out_;
    std::unique_ptr<TrainMixer> shared_;  // null: none
};

Result<std::unique_ptr<TrainMixer>> TrainMoe::make(const TrainMixerParts& parts, const MoeConfig& config) {
    auto t = std::make_unique<TrainMoe>();
    auto& engine = static_cast<DeviceMoe&>(*parts.layer.mixer);
    t->config_ = config;
    t->hidden_ = parts.model.hidden;
    t->width_ = config.latent > 0 ? config.latent : t->hidden_;
    t->engine_ = &engine;
    if (config.experts % 8)
        return fail("--device cuda does not train {} experts: their number must be a multiple of 8 ({})",
                    config.experts, parts.layer.config.prefix);
    std::span<const FlatMatrix> units = parts.units;
    t->gate_ = TrainLinear(units[0], engine.gate(), parts.vectors);
    NIBBLE_TRY(t->in_, TrainExperts::of(units[1], engine.in()));
    NIBBLE_TRY(t->out_, TrainExperts::of(units[2], engine.out()));
    units = units.subspan(3);
    if (engine.shared()) {
        NIBBLE_TRY(t->shared_, make_train_mlp(*engine.shared(), units.first(2), parts.vectors));
        units = units.subspan(2);
    }
    if (engine.to_latent()) {
        t->to_latent_ = TrainLinear(units[0], *engine.to_latent(), parts.vectors);
        t->from_latent_ = TrainLinear(units[1], *engine.from_latent(), parts.vectors);
    }
    if (config.selection_bias) {
        NIBBLE_TRY(const int64_t at, parts.vectors.place(parts.layer.config.name(config.selection_bias_name)));
        if (at >= 0 && parts.vectors.at(at)) engine.use_selection_bias(parts.vectors.at(at));
    }
    return std::unique_ptr<TrainMixer>(std::move(t));
}

Result<TrainMixerSizes> TrainMoe::sizes(int64_t n) const {
    const int64_t slots = n * config_.top_k, inner = config_.expert.intermediate;
    const int64_t narrow = config_.latent > 0 ? 2 * n * width_ : 0;
    TrainMixerSizes s{.kept = {4 * n * config_.experts, 4 * slots, 4 * slots, 4 * (config_.experts + 1), 4 * slots,
                               4 * slots, 2 * slots * in_.rows(), narrow, narrow},
                      .workspace = std::max({gate_.workspace(), to_latent_.workspace(), from_latent_.workspace()})};
    TrainMixerSizes of_shared;
    if (shared_) {
        NIBBLE_TRY(of_shared, shared_->sizes(n));
        s.kept.insert(s.kept.end(), of_shared.kept.begin(), of_shared.kept.end());
        s.workspace = std::max(s.workspace, of_shared.workspace);
    }
    const int64_t products = std::max(in_.forward_bytes(slots, false), out_.forward_bytes(slots, true));
    const int64_t of_experts =
        products + whole(4 * slots * in_.rows()) + whole(2 * slots * inner) + whole(4 * slots * width_);
    const int64_t around =
        config_.latent > 0 ? whole(to_latent_.rounded_bytes(n)) + whole(from_latent_.rounded_bytes(n)) : 0;
    s.forward = (shared_ ? whole(2 * n * hidden_) : 0) + std::max(of_shared.forward, of_experts + around);
    const int64_t back = 2 * whole(2 * slots * width_) + 2 * whole(2 * slots * inner) + whole(2 * slots * in_.rows()) +
                         std::max(in_.back_bytes(n, slots), out_.back_bytes(n, slots));
    s.backward = whole(4 * slots) + whole(2 * n * config_.experts) + 3 * whole(2 * n * hidden_) + 2 * whole(narrow) +
                 std::max(of_shared.backward, back);
    return s;
}

cuda::Routing TrainMoe::routing_of(std::span<std::byte* const> kept) {
    const auto words = [&](Buffer b) { return reinterpret_cast<int32_t*>(kept[b]); };
    return {.experts = words(experts),
            .weights = reinterpret_cast<float*>(kept[weights]),
            .begin = words(begin),
            .rows = words(rows),
            .places = words(places)};
}

Status TrainMoe::forward(const std::byte* x, std::span<std::byte* const> kept, bool keep, std::byte* y,
                         TrainWork& work) const {
    DeviceStep& step = work.step;
    const DeviceScope scope(step);
    const int64_t n = step.rows, slots = n * config_.top_k;
    const cuda::Routing routing = routing_of(kept);
    auto* scores = reinterpret_cast<float*>(kept[logits]);
    NIBBLE_CHECK(gate_.forward(x, n, scores, 0, work));
    std::byte* of_shared = nullptr;
    if (shared_) {
        NIBBLE_TRY(of_shared, step.scratch.allocate(2 * n * hidden_));
        NIBBLE_CHECK(shared_->forward(x, kept.subspan(shared), keep, y ? of_shared : nullptr, work));
    }
    NIBBLE_CHECK(
        cuda::route(engine_->router(), scores, engine_->selection_bias(), n, routing, step.overlap, step.stream));
    const std::byte* read = x;
    if (config_.latent > 0) {
        NIBBLE_CHECK(to_latent_.forward_rounded(x, n, kept[latent], work));
        read = kept[latent];
    }
    NIBBLE_TRY(float* in, step.scratch.allocate_array<float>(slots * in_.rows()));
    NIBBLE_CHECK(in_.forward({.x = read, .rows = routing.rows, .n = slots, .begin = routing.begin}, in, work));
    if (keep) NIBBLE_CHECK(cuda::to_rows(in, 0, slots, in_.rows(), {kept[wide]}, step.overlap, step.stream));
    if (!y && config_.latent == 0) return Ok{};
    NIBBLE_TRY(std::byte * mid, step.scratch.allocate(2 * slots * config_.expert.intermediate));
    NIBBLE_TRY(float* outputs, step.scratch.allocate_array<float>(slots * width_));
    NIBBLE_CHECK(cuda::activate(config_.expert.activation, config_.expert.gated, in, in_.rows(), slots,
                                config_.expert.intermediate, {mid}, step.overlap, step.stream));
    NIBBLE_CHECK(out_.forward({.x = mid, .n = slots, .begin = routing.begin}, outputs, work));
    const cuda::CombineExperts combine{
        .tokens = n, .width = width_, .top_k = config_.top_k, .y = outputs, .rows = config_.latent > 0 ? kept[sum] : y};
    NIBBLE_CHECK(cuda::combine_experts(combine, routing, step.overlap, step.stream));
    if (!y) return Ok{};
    if (config_.latent > 0) NIBBLE_CHECK(from_latent_.forward_rounded(kept[sum], n, y, work));
    if (!of_shared) return Ok{};
    return cuda::add_norm({.tokens = n, .width = hidden_, .h = y, .update_rows = of_shared}, step.overlap, step.stream);
}

Status TrainMoe::experts_backward(const std::byte* x, std::span<std::byte* const> kept, const std::byte* dy,
                                  std::byte* dx, float* d_weights, float* gradient, TrainWork& work) const {
    DeviceStep& step = work.step;
    const DeviceScope scope(step);
    const int64_t n = step.rows, slots = n * config_.top_k, inner = config_.expert.intermediate;
    const cuda::Routing routing = routing_of(kept);
    NIBBLE_TRY(std::byte * sorted, step.scratch.allocate(2 * slots * width_));
    NIBBLE_TRY(std::byte * d_sorted, step.scratch.allocate(2 * slots * width_));
    NIBBLE_TRY(std::byte * mid, step.scratch.allocate(2 * slots * inner));
    NIBBLE_TRY(std::byte * d_mid, step.scratch.allocate(2 * slots * inner));
    NIBBLE_TRY(std::byte * d_in, step.scratch.allocate(2 * slots * in_.rows()));
    NIBBLE_CHECK(cuda::embed(dy, routing.rows, slots, width_, d_sorted, step.overlap, step.stream));
    TrainExperts::Rows of{slots, routing.begin, {}};
    if (in_.quantized()) {
        NIBBLE_TRY(of.host, rows_of_experts(routing.begin, config_.experts, step.stream));
    }
    if (out_.reads_inputs_back())  // otherwise the backward pass of the activation writes it first
        NIBBLE_CHECK(cuda::activate(config_.expert.activation, config_.expert.gated, kept[wide], slots, inner, {mid},
                                    step.overlap, step.stream));
    NIBBLE_CHECK(out_.input_gradient(d_sorted, mid, of, d_mid, work));
    NIBBLE_CHECK(cuda::experts_activate_backward({.activation = config_.expert.activation,
                                                  .gated = config_.expert.gated,
                                                  .slots = slots,
                                                  .width = inner,
                                                  .places = routing.places,
                                                  .weights = routing.weights,
                                                  .in = kept[wide],
                                                  .d_mid = d_mid,
                                                  .d_in = d_in,
                                                  .mid = mid,
                                                  .d_weights = d_weights,
                                                  .plain_mid = out_.quantized()},
                                                 step.stream));
    // The same values are rounded as on a CPU: the inputs of the forward product, and the gradient of its output.
    if (out_.quantized())
        NIBBLE_CHECK(cuda::weigh_slots(slots, width_, routing.places, routing.weights, d_sorted, step.stream));
    NIBBLE_CHECK(out_.weight_gradient(d_sorted, mid, of, gradient, work));
    NIBBLE_CHECK(cuda::embed(x, routing.rows, slots, width_, sorted, step.overlap, step.stream));
    NIBBLE_CHECK(in_.weight_gradient(d_in, sorted, of, gradient, work));
    NIBBLE_CHECK(in_.input_gradient(d_in, sorted, of, d_sorted, work));
    return cuda::sum_slots(
        {.tokens = n, .width = width_, .top_k = config_.top_k, .places = routing.places, .rows = d_sorted, .out = dx},
        step.stream);
}

Status TrainMoe::backward(const std::byte* x, std::span<std::byte* const> kept, const std::byte* dy, std::byte* dx,
                          float* gradient, TrainWork& work) const {
    DeviceStep& step = work.step;
    const DeviceScope scope(step);
    const int64_t n = step.rows;
    NIBBLE_TRY(float* d_weights, step.scratch.allocate_array<float>(n * config_.top_k));
    NIBBLE_TRY(std::byte * d_logits, step.scratch.allocate(2 * n * config_.experts));
    // Terms of dx, each rounded to BF16.
    std::byte *of_router = nullptr, *of_shared = nullptr, *of_latent = nullptr;
    NIBBLE_TRY(of_router, step.scratch.allocate(2 * n * hidden_));
    if (shared_) {
        NIBBLE_TRY(of_shared, step.scratch.allocate(2 * n * hidden_));
        NIBBLE_CHECK(shared_->backward(x, kept.subspan(shared), dy, of_shared, gradient, work));
    }
    const auto router = [&]() -> Status {
        NIBBLE_CHECK(cuda::route_backward({.config = engine_->router(),
                                           .tokens = n,
                                           .logits = reinterpret_cast<const float*>(kept[logits]),
                                           .experts = routing_of(kept).experts,
                                           .d_weights = d_weights,
                                           .d_logits = d_logits},
                                          step.stream));
        return gate_.backward(d_logits, x, n, of_router, gradient, false, work);
    };
    if (config_.latent == 0) {
        NIBBLE_CHECK(experts_backward(x, kept, dy, dx, d_weights, gradient, work));
        NIBBLE_CHECK(router());
    } else {
        NIBBLE_TRY(std::byte * d_sum, step.scratch.allocate(2 * n * width_));
        NIBBLE_TRY(std::byte * d_latent, step.scratch.allocate(2 * n * width_));
        NIBBLE_TRY(of_latent, step.scratch.allocate(2 * n * hidden_));
        NIBBLE_CHECK(from_latent_.backward(dy, kept[sum], n, d_sum, gradient, false, work));
        NIBBLE_CHECK(experts_backward(kept[latent], kept, d_sum, d_latent, d_weights, gradient, work));
        NIBBLE_CHECK(router());
        NIBBLE_CHECK(to_latent_.backward(d_latent, x, n, of_latent, gradient, false, work));
    }
    return cuda::sum_slots(
        {.tokens = n, .width = hidden_, .more = {of_latent ? of_latent : dx, of_router, of_shared}, .out = dx},
        step.stream);
}

Status TrainMoe::publish(const std::byte* published, const Stream& stream) const {
    NIBBLE_CHECK(gate_.publish(published, stream));
    NIBBLE_CHECK(in_.publish(published, stream));
    NIBBLE_CHECK(out_.publish(published, stream));
    if (config_.latent > 0) {
        NIBBLE_CHECK(to_latent_.publish(published, stream));
        NIBBLE_CHECK(from_latent_.publish(published, stream));
    }
    return shared_ ? shared_->publish(published, stream) : Status(Ok{});
}

}  // namespace

Result<std::unique_ptr<TrainMixer>> make_train_mixer(const TrainMixerParts& parts, const MoeConfig& config) {
    return TrainMoe::make(parts, config);
}

}  // namespace nibble
