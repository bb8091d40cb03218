#include "base/checked.h"
#include "kernels/elementwise_cuda.h"
#include "kernels/train_cast_cuda.h"
#include "train/device/device_recipe.h"

#include <algorithm>
#include <array>

namespace nibble {
namespace {

// train/train_products.cpp has the same.
enum CastRole : uint32_t { row_role = 1, column_role, weight_role, input_role };

float divisor_of(const CastRule& rule) { return rule.format == CastFormat::nvfp4 ? nv_largest(rule) : 1.0f; }
int64_t in_arena(int64_t bytes) { return round_up(bytes, DeviceArena::alignment); }
bool in_blocks(const CastRule& rule) {
    return rule.format == CastFormat::fp8_block || rule.format == CastFormat::fp8_block2;
}
// Whether a scale of the tensor or of its rows multiplies the finished sum.
bool has_scale(const CastRule& rule) {
    return !in_blocks(rule) && rule.format != CastFormat::mxfp8 && rule.format != CastFormat::bf16;
}
bool lies_square(const CastRule& rule) {
    return rule.format == CastFormat::fp8 || (rule.square && rule.format == CastFormat::nvfp4);
}
bool is_same(const CastRule& a, const CastRule& b) {
    return a.format == b.format && a.square == b.square && a.four_over_six == b.four_over_six;
}
int64_t scales_of(int64_t outer, int64_t reduction, const CastRule& rule) {
    return in_blocks(rule) ? outer * cast_padded(reduction, rule) / fp8_group : outer;
}

struct Quantized {
    std::byte* values = nullptr;
    float* scale = nullptr;  // one, or one of each row, or of each block; null: 1
};

// What quantized() takes of scratch memory.
int64_t quantized_size(int64_t outer, int64_t reduction, const CastRule& rule) {
    return in_arena(2 * outer * cast_padded(reduction, rule)) + in_arena(4 * scales_of(outer, reduction, rule)) +
           in_arena(4);
}

// `given`, `seen`: of a delayed scale.
Result<Quantized> quantized(const cuda::CastSource& from, const CastRule& rule, const CastRandom& random,
                            DeviceStep& step, const float* given = nullptr, float* seen = nullptr) {
    Quantized q;
    NIBBLE_TRY(q.values, step.scratch.allocate(2 * from.outer() * cast_padded(from.reduction(), rule)));
    if (in_blocks(rule)) {
        NIBBLE_TRY(q.scale, step.scratch.allocate_array<float>(scales_of(from.outer(), from.reduction(), rule)));
        NIBBLE_CHECK(cuda::cast_blocks(from, rule, {q.values, q.scale}, step.stream));
        return q;
    }
    float* amax = nullptr;
    if (rule.format != CastFormat::mxfp8) {
        NIBBLE_TRY(q.scale, step.scratch.allocate_array<float>(rule.row_scaled ? from.rows : 1));
        NIBBLE_TRY(amax, step.scratch.allocate_array<float>(1));
    }
    NIBBLE_CHECK(cuda::cast_values(from, rule, random, given, {q.values, q.scale, amax, seen}, step.stream));
    return q;
}

}  // namespace

TrainProduct::TrainProduct(const FlatMatrix& weight, uint32_t number, int64_t place, const UnitRules& early,
                           const UnitRules& late, const RecipeStep& step)
    : weight_(weight), number_(number), place_(place), early_(early), late_(late), step_(step) {}

CastRandom TrainProduct::random(uint32_t role) const { return {.id = 8 * number_ + role, .draw = step_.draw}; }

const float* TrainProduct::given(DelayedUnits::Role role) const {
    return rules().delayed ? step_.delayed.of(step_.delayed.scales, role, place_) : nullptr;
}
float* TrainProduct::seen(DelayedUnits::Role role) const {
    return rules().delayed ? step_.delayed.of(step_.delayed.seen, role, place_) : nullptr;
}

bool TrainProduct::one_copy() const {
    const UnitRules& r = rules();
    return lies_square(r.w_back) && is_same(r.w, r.w_back);
}

Status TrainProduct::check() const {
    if (weight_.rows % 8 || weight_.cols % 8)
        return fail("{}: [{}, {}], not multiples of 8", weight_.name, weight_.rows, weight_.cols);
    for (const CastRule& rule : {early_.w, early_.w_back})
        if (rule.square && rule.format == CastFormat::nvfp4 && (weight_.rows % 16 || weight_.cols % 16))
            return fail("{}: tiles of 16 x 16 of [{}, {}] are not built on a GPU; use square: false", weight_.name,
                        weight_.rows, weight_.cols);
    return Ok{};
}

// ---- The weight's copies -------------------------------------------------------------------------------------------

namespace {

struct CopySizes {
    int64_t tiles = 0, back = 0, scales = 0;  // scales: numbers, of one way
};
CopySizes copy_sizes(const FlatMatrix& w, const UnitRules& early, const UnitRules& late) {
    CopySizes s;
    for (const UnitRules* r : {&early, &late}) {
        s.tiles = std::max(s.tiles, cuda::operand_bytes(w.rows, cast_padded(w.cols, r->w)));
        const int64_t back_rows = cast_padded(w.rows, r->w_back);
        s.back =
            std::max(s.back, in_blocks(r->w_back) ? cuda::operand_bytes(w.cols, back_rows) : 2 * back_rows * w.cols);
    }
    const auto of = [](int64_t x) { return (x + fp8_group - 1) / fp8_group; };
    s.scales = std::max<int64_t>(of(w.rows) * of(w.cols), 2);
    return s;
}

}  // namespace

int64_t TrainProduct::bytes() const {
    const CopySizes s = copy_sizes(weight_, early_, late_);
    return in_arena(s.tiles) + in_arena(s.back) + 2 * in_arena(4 * s.scales);
}

int64_t TrainProduct::staging_bytes() const {
    int64_t most = 0;
    for (const UnitRules* r : {&early_, &late_}) {
        most = std::max(most, 2 * weight_.rows * cast_padded(weight_.cols, r->w));
        if (in_blocks(r->w_back)) most = std::max(most, 2 * weight_.cols * cast_padded(weight_.rows, r->w_back));
    }
    return most;
}

Status TrainProduct::load(DeviceArena& arena, const Stream& stream) {
    const CopySizes s = copy_sizes(weight_, early_, late_);
    NIBBLE_TRY(tiles_, arena.allocate(s.tiles));
    NIBBLE_TRY(back_, arena.allocate(s.back));
    NIBBLE_TRY(scales_, arena.allocate_array<float>(s.scales));
    NIBBLE_TRY(back_scales_, arena.allocate_array<float>(s.scales));
    NIBBLE_CHECK(fill_device(tiles_, 0, s.tiles, stream));
    return fill_device(back_, 0, s.back, stream);
}

Status TrainProduct::publish(const std::byte* published, const Stream& stream) const {
    const UnitRules& r = rules();
    cuda::CastSource from{.x = published + 2 * weight_.at, .rows = weight_.rows, .cols = weight_.cols};
    const auto tiled = [&](const std::byte* values, int64_t rows, int64_t cols, std::byte* tiles) {
        return cuda::make_operand(MatrixView{DType::bf16, rows, cols, values}, rows, 0, tiles, stream);
    };
    const std::byte* values = from.x;
    if (r.w.format != CastFormat::bf16) {
        std::byte* to = one_copy() ? back_ : step_.staging;
        NIBBLE_CHECK(in_blocks(r.w)
                         ? cuda::cast_blocks(from, r.w, {to, scales_}, stream)
                         : cuda::cast_values(from, r.w, {}, given(DelayedUnits::weights),
                                             {to, scales_, scales_ + 1, seen(DelayedUnits::weights)}, stream));
        values = to;
    }
    NIBBLE_CHECK(tiled(values, weight_.rows, cast_padded(weight_.cols, r.w), tiles_));
    if (one_copy()) return Ok{};
    if (in_blocks(r.w_back)) {
        from.down = true;
        NIBBLE_CHECK(cuda::cast_blocks(from, r.w_back, {step_.staging, back_scales_}, stream));
        return tiled(step_.staging, weight_.cols, cast_padded(weight_.rows, r.w_back), back_);
    }
    from.down = !lies_square(r.w_back);
    return cuda::cast_values(from, r.w_back, {}, nullptr, {back_, back_scales_, back_scales_ + 1}, stream);
}

// ---- Forward -------------------------------------------------------------------------------------------------------

Result<cuda::ProductInput> TrainProduct::input(const std::byte* x, int64_t n, DeviceStep& step) const {
    const UnitRules& r = rules();
    cuda::ProductInput in{.x = x, .tokens = n};
    if (r.x.format == CastFormat::bf16) return in;
    NIBBLE_TRY(const Quantized q,
               quantized({.x = x, .rows = n, .cols = weight_.cols}, r.x, {}, step, given(DelayedUnits::inputs),
                         step_.recording ? seen(DelayedUnits::inputs) : nullptr));
    in.x = q.values;
    if (in_blocks(r.x)) in.group_scales = q.scale;
    if (has_scale(r.x)) {
        NIBBLE_TRY(float* scales, step.scratch.allocate_array<float>(n));
        const float constant = 1.0f / (divisor_of(r.x) * divisor_of(r.w));
        NIBBLE_CHECK(cuda::product_scales(q.scale, r.x.row_scaled, scales_, constant, scales, n, step.stream));
        in.token_scales = scales;
    }
    return in;
}

cuda::Operand TrainProduct::operand(const float* bias) const {
    const CastRule& w = rules().w;
    return {.rows = weight_.rows,
            .cols = cast_padded(weight_.cols, w),
            .tiles = tiles_,
            .tile_scales = in_blocks(w) ? scales_ : nullptr,
            .bias = bias};
}

Status TrainProduct::forward(const std::byte* x, int64_t n, float* y, int64_t y_stride, const float* bias,
                             DeviceStep& step) const {
    const DeviceScope scope(step);
    NIBBLE_TRY(const cuda::ProductInput in, input(x, n, step));
    return cuda::product(in, operand(bias), y, y_stride, false, step.stream);
}

Status TrainProduct::forward_rounded(const std::byte* x, int64_t n, std::byte* y, const float* bias,
                                     DeviceStep& step) const {
    const DeviceScope scope(step);
    NIBBLE_TRY(const cuda::ProductInput in, input(x, n, step));
    return cuda::rounded_product(in, operand(bias), y, weight_.rows, false, step.stream);
}

// Scales of tiles, which have no kernel that rounds for few rows, may not be there yet.
bool TrainProduct::rounds(int64_t n) const {
    return (n > 64 || !(in_blocks(early_.w) || in_blocks(late_.w))) && cuda::has_rounded_product(operand(nullptr), n);
}

Result<cuda::KernelChoice> TrainProduct::describe(int64_t n) const {
    NIBBLE_TRY(cuda::KernelChoice choice, cuda::describe_product(operand(nullptr), n));
    choice.why += "; operands emulated in BF16: " + rule_text(rules().x) + " by " + rule_text(rules().w);
    return choice;
}

int64_t TrainProduct::scratch_bytes(int64_t n) const {
    int64_t most = 0;
    for (const UnitRules* r : {&early_, &late_}) most = std::max(most, quantized_size(n, weight_.cols, r->x));
    return most + in_arena(4 * n);
}

// ---- The way back --------------------------------------------------------------------------------------------------

int64_t TrainProduct::back_scratch_bytes(int64_t n) const {
    const int64_t rows = weight_.rows, cols = weight_.cols;
    int64_t input = quantized_size(n, rows, early_.dy) + in_arena(4);
    int64_t weight = quantized_size(rows, n, early_.dy_t) + quantized_size(cols, n, early_.x_t) + in_arena(4);
    if (in_blocks(early_.dy)) input += in_arena(4 * n * cols);
    if (in_blocks(early_.dy_t))
        weight += in_arena(cuda::operand_bytes(cols, cast_padded(n, early_.x_t))) + in_arena(4 * rows * cols);
    return std::max(input, weight);
}

Status TrainProduct::input_gradient(const std::byte* dy, int64_t n, std::byte* dx, TrainWork& work) const {
    const UnitRules& r = rules();
    DeviceStep& step = work.step;
    const DeviceScope scope(step);
    const int64_t back_rows = cast_padded(weight_.rows, r.w_back);
    CastRandom draws = random(row_role);
    draws.first_outer = step_.tokens;
    draws.outer_step = static_cast<uint64_t>((back_rows + 15) / 16);
    NIBBLE_TRY(const Quantized q, quantized({.x = dy, .rows = n, .cols = weight_.rows}, r.dy, draws, step,
                                            given(DelayedUnits::gradients)));
    if (in_blocks(r.dy)) {
        const cuda::ProductInput in{.x = q.values, .tokens = n, .group_scales = q.scale};
        const cuda::Operand w{.rows = weight_.cols, .cols = back_rows, .tiles = back_, .tile_scales = back_scales_};
        if (cuda::has_rounded_product(w, n))
            return cuda::rounded_product(in, w, dx, weight_.cols, false, step.stream).within(weight_.name);
        NIBBLE_TRY(float* exact, step.scratch.allocate_array<float>(n * weight_.cols));
        NIBBLE_CHECK(cuda::product(in, w, exact, weight_.cols, false, step.stream).within(weight_.name));
        return cuda::to_rows(exact, 0, n, weight_.cols, {dx}, false, step.stream).within(weight_.name);
    }
    const bool scaled = has_scale(r.dy);
    cuda::BackScale scale;
    if (scaled) {
        NIBBLE_TRY(float* factor, step.scratch.allocate_array<float>(1));
        const float constant = 1.0f / (divisor_of(r.dy) * divisor_of(r.w_back));
        NIBBLE_CHECK(cuda::product_scales(q.scale, false, one_copy() ? scales_ : back_scales_, constant, factor, 1,
                                          step.stream));
        scale = {factor, step_.ends};
    }
    NIBBLE_TRY(const cuda::BackPlan* plan, work.plans.of(n, back_rows, weight_.cols, scaled));
    return cuda::back_input_gradient(*plan, q.values, back_, dx, work.workspace, step.stream, scale)
        .within(weight_.name);
}

Status TrainProduct::weight_gradient(const std::byte* dy, const std::byte* x, int64_t n, float* gradient, bool add,
                                     TrainWork& work) const {
    const UnitRules& r = rules();
    if (in_blocks(r.dy_t)) return block_gradient(dy, x, n, gradient, add, work).within(weight_.name);
    DeviceStep& step = work.step;
    const DeviceScope scope(step);
    CastRandom of_dy = random(column_role), of_x = random(input_role);
    of_dy.first_group = of_x.first_group = step_.groups;
    of_dy.group_step = static_cast<uint64_t>(weight_.rows);
    of_x.group_step = static_cast<uint64_t>(weight_.cols);
    NIBBLE_TRY(const Quantized a,
               quantized({.x = dy, .rows = n, .cols = weight_.rows, .down = true}, r.dy_t, of_dy, step,
                         given(DelayedUnits::gradients), step_.recording ? seen(DelayedUnits::gradients) : nullptr));
    NIBBLE_TRY(const Quantized b, quantized({.x = x, .rows = n, .cols = weight_.cols, .down = true}, r.x_t, of_x, step,
                                            given(DelayedUnits::inputs)));
    const bool scaled = has_scale(r.dy_t);
    cuda::BackScale scale;
    if (scaled) {
        NIBBLE_TRY(float* factor, step.scratch.allocate_array<float>(1));
        const float constant = 1.0f / (divisor_of(r.dy_t) * divisor_of(r.x_t));
        NIBBLE_CHECK(cuda::product_scales(a.scale, false, b.scale, constant, factor, 1, step.stream));
        scale = {factor, step_.ends};
    }
    NIBBLE_TRY(const cuda::BackPlan* plan, work.plans.of(cast_padded(n, r.dy_t), weight_.rows, weight_.cols, scaled));
    return cuda::back_weight_gradient(*plan, a.values, b.values, gradient + weight_.at, add, work.workspace,
                                      step.stream, scale)
        .within(weight_.name);
}

// Both operands in blocks along tokens: a product of dY^T by x^T as an operand with a scale of each row.
Status TrainProduct::block_gradient(const std::byte* dy, const std::byte* x, int64_t n, float* gradient, bool add,
                                    TrainWork& work) const {
    const UnitRules& r = rules();
    DeviceStep& step = work.step;
    const DeviceScope scope(step);
    const int64_t rows = weight_.rows, cols = weight_.cols, tokens = cast_padded(n, r.x_t);
    NIBBLE_TRY(const Quantized a, quantized({.x = dy, .rows = n, .cols = rows, .down = true}, r.dy_t, {}, step));
    NIBBLE_TRY(const Quantized b, quantized({.x = x, .rows = n, .cols = cols, .down = true}, r.x_t, {}, step));
    // Rows behind the last one stay as they are: nobody reads what comes of them.
    NIBBLE_TRY(std::byte * tiles, step.scratch.allocate(cuda::operand_bytes(cols, tokens)));
    NIBBLE_CHECK(cuda::make_operand(MatrixView{DType::bf16, cols, tokens, b.values}, cols, 0, tiles, step.stream));
    const cuda::ProductInput in{.x = a.values, .tokens = rows, .group_scales = a.scale};
    const cuda::Operand w{.rows = cols, .cols = tokens, .tiles = tiles, .tile_scales = b.scale, .tile_rows = 1};
    float* to = gradient + weight_.at;
    if (add) {
        NIBBLE_TRY(to, step.scratch.allocate_array<float>(rows * cols));
    }
    NIBBLE_CHECK(cuda::product(in, w, to, cols, false, step.stream));
    if (!add) return Ok{};
    return cuda::add_gradient(gradient + weight_.at, to, rows * cols, step.stream);
}

}  // namespace nibble
