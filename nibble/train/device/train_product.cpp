#include "train/device/cast_operand.h"
#include "train/device/device_recipe.h"

#include <algorithm>
#include <array>

namespace nibble {
namespace {

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

}  // namespace

TrainProduct::TrainProduct(const FlatMatrix& weight, uint32_t number, int64_t place, const UnitRules& early,
                           const UnitRules& late, const RecipeStep& step)
    : weight_(weight), number_(number), place_(place), early_(early), late_(late), step_(step) {
    if (early.rank > 0) directions_ = std::make_unique<DeviceDirections>(weight.cols, early.rank, random(first_role));
}

CastRandom TrainProduct::random(uint32_t role) const { return {.id = 8 * number_ + role, .draw = step_.draw}; }

const float* TrainProduct::given(DelayedUnits::Role role) const {
    return rules().delayed ? step_.delayed.of(step_.delayed.scales, role, place_) : nullptr;
}
float* TrainProduct::seen(DelayedUnits::Role role) const {
    return rules().delayed ? step_.delayed.of(step_.delayed.seen, role, place_) : nullptr;
}

int64_t TrainProduct::back_rows() const {
    return draws() ? eden_padded(weight_.rows) : cast_padded(weight_.rows, rules().w_back);
}

bool TrainProduct::one_copy() const {
    const UnitRules& r = rules();
    return !draws() && lies_square(r.w_back) && is_same(r.w, r.w_back);
}

Status TrainProduct::check() const {
    if (weight_.rows % 8 || weight_.cols % 8)
        return fail("{}: [{}, {}], not multiples of 8", weight_.name, weight_.rows, weight_.cols);
    if (early_.rank > cuda::most_directions)
        return fail("{}: a term of rank {}; on a GPU at most {}", weight_.name, early_.rank, cuda::most_directions);
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
        const int64_t back_rows = r->eden ? eden_padded(w.rows) : cast_padded(w.rows, r->w_back);
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
    int64_t along = 0;
    if (directions_) along = directions_->bytes() + in_arena(cuda::operand_bytes(weight_.rows, directions_->pitch()));
    return in_arena(s.tiles) + in_arena(s.back) + 2 * in_arena(4 * s.scales) + along;
}

int64_t TrainProduct::staging_bytes() const {
    int64_t most = 0;
    for (const UnitRules* r : {&early_, &late_}) {
        most = std::max(most, 2 * weight_.rows * cast_padded(weight_.cols, r->w));
        if (in_blocks(r->w_back)) most = std::max(most, 2 * weight_.cols * cast_padded(weight_.rows, r->w_back));
        if (directions_) most = std::max(most, 2 * weight_.rows * directions_->pitch());
    }
    return most;
}

Status TrainProduct::load(DeviceArena& arena, const Stream& stream) {
    const CopySizes s = copy_sizes(weight_, early_, late_);
    NIBBLE_TRY(tiles_, arena.allocate(s.tiles));
    NIBBLE_TRY(back_, arena.allocate(s.back));
    NIBBLE_TRY(scales_, arena.allocate_array<float>(s.scales));
    NIBBLE_TRY(back_scales_, arena.allocate_array<float>(s.scales));
    if (directions_) {
        const int64_t along = cuda::operand_bytes(weight_.rows, directions_->pitch());
        NIBBLE_CHECK(directions_->load(arena, stream));
        NIBBLE_TRY(along_, arena.allocate(along));
        NIBBLE_CHECK(fill_device(along_, 0, along, stream));
    }
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
    if (r.rank > 0) {
        NIBBLE_CHECK(directions_->split(from.x, weight_.rows, step_.staging, nullptr, stream));
        NIBBLE_CHECK(tiled(step_.staging, weight_.rows, directions_->pitch(), along_));
    }
    if (draws() || one_copy()) return Ok{};
    if (in_blocks(r.w_back)) {
        from.down = true;
        NIBBLE_CHECK(cuda::cast_blocks(from, r.w_back, {step_.staging, back_scales_}, stream));
        return tiled(step_.staging, weight_.cols, cast_padded(weight_.rows, r.w_back), back_);
    }
    from.down = !lies_square(r.w_back);
    return cuda::cast_values(from, r.w_back, {}, nullptr, {back_, back_scales_, back_scales_ + 1}, stream);
}

// MS-EDEN of the weight that the forward product multiplies, where that is NVFP4; else of its BF16 values.
Status TrainProduct::draw(const std::byte* published, const Stream& stream) const {
    if (!draws()) return Ok{};
    const CastRule& w = rules().w;
    cuda::CastSource from{.x = published + 2 * weight_.at, .rows = weight_.rows, .cols = weight_.cols};
    if (w.format == CastFormat::nvfp4) {
        NIBBLE_CHECK(cuda::cast_values(from, w, {}, nullptr, {step_.staging, scales_, scales_ + 1}, stream));
        from.x = step_.staging;
        from.stride = cast_padded(weight_.cols, w);
        from.scale = scales_;
        from.factor = 1.0f / divisor_of(w);
    }
    from.down = true;
    CastRandom draws = random(weight_role);
    draws.group_step = static_cast<uint64_t>(weight_.cols);
    return cuda::eden_values(from, draws, random(input_signs), 0, {back_, back_scales_, back_scales_ + 1}, stream)
        .within(weight_.name);
}

// ---- Forward -------------------------------------------------------------------------------------------------------

Result<TrainProduct::Input> TrainProduct::input(const std::byte* x, int64_t n, DeviceStep& step) const {
    const UnitRules& r = rules();
    Input in{.rows = {.x = x, .tokens = n}};
    if (r.x.format == CastFormat::bf16) return in;
    if (r.rank > 0) {
        NIBBLE_TRY(std::byte * along, step.scratch.allocate(2 * n * directions_->pitch()));
        NIBBLE_TRY(std::byte * rest, step.scratch.allocate(2 * n * weight_.cols));
        NIBBLE_CHECK(directions_->split(x, n, along, rest, step.stream));
        in.along = along, x = rest;
    }
    NIBBLE_TRY(const Quantized q,
               quantized({.x = x, .rows = n, .cols = weight_.cols}, r.x, {}, step, given(DelayedUnits::inputs),
                         step_.recording ? seen(DelayedUnits::inputs) : nullptr));
    in.rows.x = q.values;
    if (in_blocks(r.x)) in.rows.group_scales = q.scale;
    if (has_scale(r.x)) {
        NIBBLE_TRY(float* scales, step.scratch.allocate_array<float>(n));
        const float constant = 1.0f / (divisor_of(r.x) * divisor_of(r.w));
        NIBBLE_CHECK(cuda::product_scales(q.scale, r.x.row_scaled, scales_, constant, scales, n, step.stream));
        in.rows.token_scales = scales;
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
    NIBBLE_TRY(const Input in, input(x, n, step));
    NIBBLE_CHECK(cuda::product(in.rows, operand(bias), y, y_stride, false, step.stream));
    if (!in.along) return Ok{};
    NIBBLE_TRY(float* more, step.scratch.allocate_array<float>(n * weight_.rows));
    const cuda::Operand w{.rows = weight_.rows, .cols = directions_->pitch(), .tiles = along_};
    NIBBLE_CHECK(cuda::product({.x = in.along, .tokens = n}, w, more, weight_.rows, false, step.stream));
    return cuda::add_rows(y, y_stride ? y_stride : weight_.rows, more, n, weight_.rows, step.stream);
}

Status TrainProduct::forward_rounded(const std::byte* x, int64_t n, std::byte* y, const float* bias,
                                     DeviceStep& step) const {
    const DeviceScope scope(step);
    NIBBLE_TRY(const Input in, input(x, n, step));
    return cuda::rounded_product(in.rows, operand(bias), y, weight_.rows, false, step.stream);
}

// Scales of tiles, which have no kernel that rounds for few rows, may not be there yet.
bool TrainProduct::rounds(int64_t n) const {
    const bool blocks = in_blocks(early_.w) || in_blocks(late_.w);
    return !directions_ && (n > 64 || !blocks) && cuda::has_rounded_product(operand(nullptr), n);
}

Result<cuda::KernelChoice> TrainProduct::describe(int64_t n) const {
    NIBBLE_TRY(cuda::KernelChoice choice, cuda::describe_product(operand(nullptr), n));
    choice.why += "; operands emulated in BF16: " + rule_text(rules().x) + " by " + rule_text(rules().w);
    return choice;
}

int64_t TrainProduct::split_size(int64_t n) const {
    return directions_ ? in_arena(2 * n * directions_->pitch()) + in_arena(2 * n * weight_.cols) : 0;
}

int64_t TrainProduct::scratch_bytes(int64_t n) const {
    int64_t most = 0;
    for (const UnitRules* r : {&early_, &late_}) most = std::max(most, quantized_size(n, weight_.cols, r->x));
    if (directions_) most += split_size(n) + in_arena(4 * n * weight_.rows);
    return most + in_arena(4 * n);
}

}  // namespace nibble
