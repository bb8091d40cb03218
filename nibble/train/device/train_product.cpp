#include "base/checked.h"
#include "kernels/train_cast_cuda.h"
#include "train/device/device_recipe.h"

namespace nibble {
namespace {

// train/train_products.cpp has the same.
enum CastRole : uint32_t { row_role = 1, column_role, weight_role, input_role };

float divisor_of(const CastRule& rule) { return rule.format == CastFormat::nvfp4 ? nv_largest(rule) : 1.0f; }
int64_t in_arena(int64_t bytes) { return round_up(bytes, DeviceArena::alignment); }
bool has_scales(const CastRule& rule) { return rule.format != CastFormat::mxfp8 && rule.format != CastFormat::bf16; }

struct Quantized {
    std::byte* values = nullptr;
    float* scale = nullptr;  // one, or one of each row; null: 1
};

// In scratch memory.
Result<Quantized> quantized(const cuda::CastSource& from, const CastRule& rule, const CastRandom& random,
                            DeviceStep& step) {
    const int64_t length = cast_padded(from.reduction(), rule);
    Quantized q;
    NIBBLE_TRY(q.values, step.scratch.allocate(2 * from.outer() * length));
    float* amax = nullptr;
    if (rule.format != CastFormat::mxfp8) {
        NIBBLE_TRY(q.scale, step.scratch.allocate_array<float>(rule.row_scaled ? from.rows : 1));
        NIBBLE_TRY(amax, step.scratch.allocate_array<float>(1));
    }
    NIBBLE_CHECK(cuda::cast_values(from, rule, random, nullptr, {q.values, q.scale, amax}, step.stream));
    return q;
}

}  // namespace

CastRandom TrainProduct::random(uint32_t role) const { return {.id = 8 * number_ + role, .draw = step_.draw}; }

Status TrainProduct::check() const {
    if (weight_.rows % 8 || weight_.cols % 8)
        return fail("{}: [{}, {}], not multiples of 8", weight_.name, weight_.rows, weight_.cols);
    if (rules_.w.square && (weight_.rows % 16 || weight_.cols % 16))
        return fail("{}: tiles of 16 x 16 of [{}, {}] are not built on a GPU; use square: false", weight_.name,
                    weight_.rows, weight_.cols);
    return Ok{};
}

int64_t TrainProduct::bytes() const {
    return in_arena(2 * weight_.rows * operand_cols()) + in_arena(cuda::operand_bytes(weight_.rows, operand_cols())) +
           in_arena(4 * 4) + (one_copy() ? 0 : in_arena(2 * back_rows() * weight_.cols));
}

Status TrainProduct::load(DeviceArena& arena, const Stream& stream) {
    const int64_t tiles = cuda::operand_bytes(weight_.rows, operand_cols());
    NIBBLE_TRY(values_, arena.allocate(2 * weight_.rows * operand_cols()));
    NIBBLE_TRY(std::byte * memory, arena.allocate(tiles));
    NIBBLE_TRY(scales_, arena.allocate_array<float>(4));
    NIBBLE_CHECK(fill_device(memory, 0, tiles, stream));
    operand_ = {.rows = weight_.rows, .cols = operand_cols(), .tiles = memory};
    back_ = values_;
    if (!one_copy()) {
        NIBBLE_TRY(back_, arena.allocate(2 * back_rows() * weight_.cols));
    }
    return Ok{};
}

Status TrainProduct::publish(const std::byte* published, const Stream& stream) const {
    cuda::CastSource from{.x = published + 2 * weight_.at, .rows = weight_.rows, .cols = weight_.cols};
    NIBBLE_CHECK(cuda::cast_values(from, rules_.w, {}, nullptr, {values_, scales_, scales_ + 1}, stream));
    if (!one_copy()) {
        from.down = true;
        NIBBLE_CHECK(cuda::cast_values(from, rules_.w_back, {}, nullptr, {back_, scales_ + 2, scales_ + 3}, stream));
    }
    const MatrixView view{DType::bf16, weight_.rows, operand_.cols, values_};
    return cuda::make_operand(view, weight_.rows, 0, const_cast<std::byte*>(operand_.tiles), stream);
}

Status TrainProduct::forward(const std::byte* x, int64_t n, float* y, int64_t y_stride, const float* bias,
                             DeviceStep& step) const {
    const DeviceScope scope(step);
    NIBBLE_TRY(const Quantized q, quantized({.x = x, .rows = n, .cols = weight_.cols}, rules_.x, {}, step));
    cuda::ProductInput in{.x = q.values, .tokens = n};
    if (has_scales(rules_.x)) {
        NIBBLE_TRY(float* scales, step.scratch.allocate_array<float>(n));
        const float constant = 1.0f / (divisor_of(rules_.x) * divisor_of(rules_.w));
        NIBBLE_CHECK(cuda::product_scales(q.scale, rules_.x.row_scaled, scales_, constant, scales, n, step.stream));
        in.token_scales = scales;
    }
    cuda::Operand w = operand_;
    w.bias = bias;
    return cuda::product(in, w, y, y_stride, false, step.stream);
}

Result<cuda::KernelChoice> TrainProduct::describe(int64_t n) const {
    NIBBLE_TRY(cuda::KernelChoice choice, cuda::describe_product(operand_, n));
    choice.why += "; operands emulated in BF16: " + rule_text(rules_.x) + " by " + rule_text(rules_.w);
    return choice;
}

int64_t TrainProduct::scratch_bytes(int64_t n) const {
    return in_arena(2 * n * operand_cols()) + 2 * in_arena(4 * n) + 2 * in_arena(4);
}

int64_t TrainProduct::back_scratch_bytes(int64_t n) const {
    const int64_t input = in_arena(2 * n * back_rows());
    const int64_t tokens = cast_padded(n, rules_.dy_t);
    const int64_t weight = in_arena(2 * tokens * weight_.rows) + in_arena(2 * tokens * weight_.cols);
    return std::max(input, weight) + 8 * in_arena(4);
}

Status TrainProduct::input_gradient(const std::byte* dy, int64_t n, std::byte* dx, TrainWork& work) const {
    DeviceStep& step = work.step;
    const DeviceScope scope(step);
    CastRandom draws = random(row_role);
    draws.first_outer = step_.tokens;
    draws.outer_step = static_cast<uint64_t>((back_rows() + 15) / 16);
    NIBBLE_TRY(const Quantized q, quantized({.x = dy, .rows = n, .cols = weight_.rows}, rules_.dy, draws, step));
    const bool scaled = has_scales(rules_.dy);
    cuda::BackScale scale;
    if (scaled) {
        NIBBLE_TRY(float* factor, step.scratch.allocate_array<float>(1));
        const float constant = 1.0f / (divisor_of(rules_.dy) * divisor_of(rules_.w_back));
        NIBBLE_CHECK(
            cuda::product_scales(q.scale, false, one_copy() ? scales_ : scales_ + 2, constant, factor, 1, step.stream));
        scale = {factor, step_.ends};
    }
    NIBBLE_TRY(const cuda::BackPlan* plan, work.plans.of(n, back_rows(), weight_.cols, scaled));
    return cuda::back_input_gradient(*plan, q.values, back_, dx, work.workspace, step.stream, scale)
        .within(weight_.name);
}

Status TrainProduct::weight_gradient(const std::byte* dy, const std::byte* x, int64_t n, float* gradient, bool add,
                                     TrainWork& work) const {
    DeviceStep& step = work.step;
    const DeviceScope scope(step);
    CastRandom of_dy = random(column_role), of_x = random(input_role);
    of_dy.first_group = of_x.first_group = step_.groups;
    of_dy.group_step = static_cast<uint64_t>(weight_.rows);
    of_x.group_step = static_cast<uint64_t>(weight_.cols);
    NIBBLE_TRY(const Quantized a,
               quantized({.x = dy, .rows = n, .cols = weight_.rows, .down = true}, rules_.dy_t, of_dy, step));
    NIBBLE_TRY(const Quantized b,
               quantized({.x = x, .rows = n, .cols = weight_.cols, .down = true}, rules_.x_t, of_x, step));
    const bool scaled = has_scales(rules_.dy_t);
    cuda::BackScale scale;
    if (scaled) {
        NIBBLE_TRY(float* factor, step.scratch.allocate_array<float>(1));
        const float constant = 1.0f / (divisor_of(rules_.dy_t) * divisor_of(rules_.x_t));
        NIBBLE_CHECK(cuda::product_scales(a.scale, false, b.scale, constant, factor, 1, step.stream));
        scale = {factor, step_.ends};
    }
    NIBBLE_TRY(const cuda::BackPlan* plan,
               work.plans.of(cast_padded(n, rules_.dy_t), weight_.rows, weight_.cols, scaled));
    return cuda::back_weight_gradient(*plan, a.values, b.values, gradient + weight_.at, add, work.workspace,
                                      step.stream, scale)
        .within(weight_.name);
}

}  // namespace nibble
