#include "train/train_products.h"

#include "model/gradients.h"

namespace nibble {
namespace {

enum DrawRole : uint32_t { draw_rows = 1, draw_columns = 2 };  // values of Role in host_recipe.cpp

CastRandom random_of(const LinearDraw& draw, uint32_t role) {
    return {.id = 8 * draw.linear + role, .draw = (draw.seed << 20) + draw.step};
}

std::vector<float> turned(const float* x, int64_t rows, int64_t cols, ThreadPool& pool) {
    std::vector<float> y(static_cast<size_t>(rows * cols));
    transpose(x, rows, cols, cols, y.data(), pool);
    return y;
}

// The values as they are.
CastOperand as_it_is(const float* x, int64_t rows, int64_t cols) {
    return {.rows = rows, .cols = cols, .values = std::vector<float>(x, x + rows * cols), .scale = {1.0f}};
}

}  // namespace

Result<TrainProducts> TrainProducts::create(std::string_view recipe) {
    NIBBLE_TRY(const TrainPrecision precision, train_precision_from_name(recipe).as(ErrorKind::usage));
    const UnitRules rules = unit_rules(precision, {.layer = 0, .layers = 1}, false);
    if (rules.delayed || rules.engine || rules.eden || rules.rank > 0)
        return fail(ErrorKind::usage,
                    "recipe '{}' keeps a state between steps; choices: fp32, bf16, fp8, fp8_block, mxfp8, nvfp4, "
                    "nvfp4_no_rht",
                    recipe);
    NIBBLE_TRY(const MatmulKernels* const kernels, select_matmul_kernels());
    return TrainProducts(rules, *kernels, precision.recipe == TrainRecipe::fp32);
}

void TrainProducts::forward(const float* x, int64_t n, const float* w, int64_t outputs, int64_t inputs, float* y,
                            ThreadPool& pool) const {
    CastOperand a = plain_ ? as_it_is(x, n, inputs) : cast_rows(x, n, inputs, inputs, rules_.x, {}, {}, pool);
    CastOperand b =
        plain_ ? as_it_is(w, outputs, inputs) : cast_rows(w, outputs, inputs, inputs, rules_.w, {}, {}, pool);
    operand_product(a, PackedOperand(std::move(b), pool), {.y = y, .stride = outputs}, nullptr, *kernels_, pool);
}

void TrainProducts::input_gradient(const float* dy, int64_t n, const float* w, int64_t outputs, int64_t inputs,
                                   float* dx, const LinearDraw& draw, ThreadPool& pool) const {
    const MatmulOutput out{.y = dx, .stride = inputs};
    if (!rules_.quantized) {  // gradients between operators stay FP32
        CastOperand w_t =
            plain_ ? as_it_is(w, outputs, inputs) : cast_rows(w, outputs, inputs, inputs, {}, {}, {}, pool);
        operand_product(as_it_is(dy, n, outputs), PackedOperand(transposed_cast(w_t, inputs, pool), pool), out, nullptr,
                        *kernels_, pool);
        return;
    }
    const bool same = rules_.w_back.square || rules_.w_back.format == CastFormat::fp8;
    CastOperand back;
    if (same) {
        back = transposed_cast(cast_rows(w, outputs, inputs, inputs, rules_.w_back, {}, {}, pool), inputs, pool);
    } else {
        const std::vector<float> w_t = turned(w, outputs, inputs, pool);
        back = cast_rows(w_t.data(), inputs, outputs, outputs, rules_.w_back, {}, {}, pool);
    }
    CastRandom draws = random_of(draw, draw_rows);
    draws.outer_step = static_cast<uint64_t>((back.cols + 15) / 16);
    const CastOperand gradients = cast_rows(dy, n, outputs, outputs, rules_.dy, draws, {}, pool);
    operand_product(gradients, PackedOperand(std::move(back), pool), out, nullptr, *kernels_, pool);
}

void TrainProducts::weight_gradient(const float* dy, const float* x, int64_t n, int64_t outputs, int64_t inputs,
                                    float* dw, const LinearDraw& draw, ThreadPool& pool) const {
    const std::vector<float> dy_t = turned(dy, n, outputs, pool), x_t = turned(x, n, inputs, pool);
    CastOperand a, b;
    if (!rules_.quantized) {
        a = as_it_is(dy_t.data(), outputs, n);
        b = plain_ ? as_it_is(x_t.data(), inputs, n) : cast_rows(x_t.data(), inputs, n, n, {}, {}, {}, pool);
    } else {
        CastRandom draws = random_of(draw, draw_columns);
        draws.group_step = static_cast<uint64_t>(outputs);
        a = cast_rows(dy_t.data(), outputs, n, n, rules_.dy_t, draws, {}, pool);
        b = cast_rows(x_t.data(), inputs, n, n, rules_.x_t, {}, {}, pool);
    }
    operand_product(a, PackedOperand(std::move(b), pool), {.y = dw, .stride = inputs}, nullptr, *kernels_, pool);
}

}  // namespace nibble
