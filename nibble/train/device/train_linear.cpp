#include "train/device/train_linear.h"

namespace nibble {

Result<const cuda::BackPlan*> BackPlans::of(int64_t tokens, int64_t rows, int64_t cols, bool scaled) {
    const auto key = std::make_tuple(tokens, rows, cols, scaled);
    if (const auto found = plans_.find(key); found != plans_.end()) return &found->second;
    NIBBLE_TRY(cuda::BackPlan plan, cuda::plan_back_products({tokens, rows, cols, scaled}, device_));
    return &plans_.emplace(key, std::move(plan)).first->second;
}

Result<const cuda::CodesPlan*> BackPlans::of(const cuda::CodesShape& shape) {
    if (const auto found = codes_.find(shape); found != codes_.end()) return &found->second;
    NIBBLE_TRY(cuda::CodesPlan plan, cuda::plan_codes_matmul(shape, device_));
    return &codes_.emplace(shape, std::move(plan)).first->second;
}

TrainLinear::TrainLinear(const FlatMatrix& weight, DeviceLinear& engine, const TrainVectors& vectors)
    : weight_(weight) {
    if (weight.bias >= 0 && vectors.at(weight.bias)) engine.operand.bias = vectors.at(weight.bias);
    engine_ = engine;
}

Result<TrainLinear> TrainLinear::of(const FlatMatrix& weight, DeviceStack& engine, const TrainVectors& vectors) {
    if (engine.parts.size() != 1)
        return fail("{}: the stacked parts do not multiply as one product", engine.parts[0].name);
    return TrainLinear(weight, engine.parts[0], vectors);
}

Status TrainLinear::forward(const std::byte* x, int64_t n, float* y, int64_t y_stride, TrainWork& work) const {
    return engine_.forward({.x = x}, n, y, y_stride > 0 ? y_stride : weight_.rows, work.step);
}

Status TrainLinear::input_gradient(const std::byte* dy, const std::byte* x, int64_t n, std::byte* dx,
                                   TrainWork& work) const {
    if (const DifferentiableProduct* p = own()) return p->input_gradient(dy, x, n, dx, work);
    NIBBLE_TRY(const cuda::BackPlan* plan, work.plans.of(n, weight_.rows, weight_.cols));
    return cuda::back_input_gradient(*plan, dy, work.published + 2 * weight_.at, dx, work.workspace, work.step.stream)
        .within(weight_.name);
}

Status TrainLinear::bias_gradient(const std::byte* dy, int64_t n, TrainWork& work) const {
    if (weight_.bias < 0) return Ok{};
    return cuda::column_sums({.tokens = n,
                              .width = weight_.rows,
                              .x = dy,
                              .sums = work.of_vectors + weight_.bias,
                              .workspace = work.workspace},
                             work.step.stream);
}

Status TrainLinear::weight_gradient(const std::byte* dy, const std::byte* x, int64_t n, float* gradient, bool add,
                                    TrainWork& work) const {
    NIBBLE_CHECK(bias_gradient(dy, n, work));
    if (const DifferentiableProduct* p = own()) return p->weight_gradient(dy, x, n, gradient, add, work);
    NIBBLE_TRY(const cuda::BackPlan* plan, work.plans.of(n, weight_.rows, weight_.cols));
    return cuda::back_weight_gradient(*plan, dy, x, gradient + weight_.at, add, work.workspace, work.step.stream)
        .within(weight_.name);
}

Status TrainLinear::backward(const std::byte* dy, const std::byte* x, int64_t n, std::byte* dx, float* gradient,
                             bool add, TrainWork& work, const Between& between) const {
    if (const DifferentiableProduct* p = own()) {
        NIBBLE_CHECK(bias_gradient(dy, n, work));
        return p->backward(dy, x, n, dx, gradient, add, work, between);
    }
    NIBBLE_CHECK(input_gradient(dy, x, n, dx, work));
    NIBBLE_CHECK(made(between));
    return weight_gradient(dy, x, n, gradient, add, work);
}

Status TrainLinear::publish(const std::byte* published, const Stream& stream) const {
    if (const DifferentiableProduct* p = own()) return p->publish(published, stream);
    const MatrixView values{DType::bf16, weight_.rows, weight_.cols, published + 2 * weight_.at};
    return cuda::make_operand(values, weight_.rows, 0, const_cast<std::byte*>(engine_.operand.tiles), stream);
}

}  // namespace nibble
