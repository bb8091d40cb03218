#include "train/device/cast_operand.h"
#include "train/device/device_recipe.h"

#include <algorithm>
#include <array>

namespace nibble {
namespace {

// Up to this number of rows the engine's kernel makes codes, because it can start while the previous kernel still runs.
constexpr int64_t most_rollout_rows = 1024;

// Returns true if a scale of the tensor or of its rows multiplies the finished sum.
bool has_scale(const CastRule& rule) {
    return !in_blocks(rule) && rule.format != CastFormat::mxfp8 && rule.format != CastFormat::bf16;
}
bool lies_square(const CastRule& rule) {
    return rule.format == CastFormat::fp8 || (rule.square && rule.format == CastFormat::nvfp4);
}
bool of_tensor(const CastRule& rule) { return rule.format == CastFormat::fp8 || rule.format == CastFormat::fp8_e5m2; }
bool are_codes(const CastRule& a, const CastRule& b) {
    return (of_tensor(a) && of_tensor(b)) || (in_blocks(a) && in_blocks(b));
}
bool is_same(const CastRule& a, const CastRule& b) {
    return a.format == b.format && a.square == b.square && a.four_over_six == b.four_over_six;
}

}  // namespace

RecipeProduct::RecipeProduct(const FlatMatrix& weight, uint32_t number, int64_t place, int64_t scales,
                             const UnitRules& early, const UnitRules& late, const RecipeStep& step)
    : weight_(weight), number_(number), place_(place), delayed_(scales), early_(early), late_(late), step_(step) {
    if (early.rank > 0) directions_ = std::make_unique<DeviceDirections>(weight.cols, early.rank, random(first_role));
}

CastRandom RecipeProduct::random(uint32_t role) const { return {.id = 8 * number_ + role, .draw = step_.draw}; }

const float* RecipeProduct::given(DelayedUnits::Role role) const {
    return rules().delayed ? step_.delayed.of(step_.delayed.scales, role, delayed_) : nullptr;
}
float* RecipeProduct::seen(DelayedUnits::Role role) const {
    return rules().delayed ? step_.delayed.of(step_.delayed.seen, role, delayed_) : nullptr;
}

int64_t RecipeProduct::back_rows() const {
    return draws() ? eden_padded(weight_.rows) : cast_padded(weight_.rows, rules().w_back);
}

bool RecipeProduct::one_copy() const {
    const UnitRules& r = rules();
    return !draws() && (lies_square(r.w_back) || weights_only(r)) && is_same(r.w, r.w_back);
}

Status RecipeProduct::check() const {
    if (weight_.rows % 8 || weight_.cols % 8)
        return fail("{}: rows and columns [{}, {}] must be multiples of 8", weight_.name, weight_.rows, weight_.cols);
    if (early_.rank > cuda::most_directions)
        return fail("{}: a term of rank {} is above the limit of {} on a GPU", weight_.name, early_.rank,
                    cuda::most_directions);
    if (weights_only(early_) && (weight_.rows % 16 || weight_.cols % 16))
        return fail("{}: NVFP4 weights of [{}, {}] with BF16 inputs need multiples of 16 on a GPU", weight_.name,
                    weight_.rows, weight_.cols);
    for (const CastRule& rule : {early_.w, early_.w_back})
        if (rule.square && rule.format == CastFormat::nvfp4 && (weight_.rows % 16 || weight_.cols % 16))
            return fail("{}: [{}, {}] is not divisible into blocks of 16 x 16, as a GPU needs; use square: false",
                        weight_.name, weight_.rows, weight_.cols);
    return Ok{};
}

// ---- Copies of the weight ------------------------------------------------------------------------------------------

bool RecipeProduct::forward_codes(const UnitRules& r) const { return step_.codes && !r.emulate && are_codes(r.x, r.w); }
bool RecipeProduct::back_codes(const UnitRules& r) const {
    return step_.codes && !r.emulate && !r.eden && are_codes(r.dy, r.w_back) && are_codes(r.dy_t, r.x_t) &&
           is_same(r.dy, r.dy_t);
}
bool RecipeProduct::one_rounding() const {
    const UnitRules& r = rules();
    return forward_codes(r) && back_codes(r) && is_same(r.w, r.w_back);
}

RecipeProduct::CopySizes RecipeProduct::copy_sizes() const {
    CopySizes s;
    const int64_t rows = weight_.rows, cols = weight_.cols;
    for (const UnitRules* r : {&early_, &late_}) {
        s.tiles = std::max(s.tiles, forward_codes(*r) ? cuda::codes_bytes(rows, cols)
                                                      : cuda::operand_bytes(rows, cast_padded(cols, r->w)));
        const int64_t back_rows = r->eden ? eden_padded(rows) : cast_padded(rows, r->w_back);
        if (r->plain_back) continue;  // it reads the published values
        s.back = std::max(s.back, back_codes(*r)         ? cols * cuda::codes_pitch(rows)
                                  : in_blocks(r->w_back) ? cuda::operand_bytes(cols, back_rows)
                                                         : 2 * back_rows * cols);
    }
    s.scales = std::max<int64_t>({cuda::code_scale_count(rows, cols, cuda::CodeScaling::tile),
                                  cuda::code_scale_count(cols, rows, cuda::CodeScaling::tile), 3});
    return s;
}

int64_t RecipeProduct::copy_bytes() const {
    const CopySizes s = copy_sizes();
    return in_arena(s.tiles) + in_arena(s.back);
}

int64_t RecipeProduct::bytes() const {
    const CopySizes s = copy_sizes();
    int64_t along = 0;
    if (directions_) along = directions_->bytes() + in_arena(cuda::operand_bytes(weight_.rows, directions_->pitch()));
    return in_arena(s.tiles) + in_arena(s.back) + 2 * in_arena(4 * s.scales) + along;
}

int64_t RecipeProduct::staging_bytes() const {
    int64_t most = 0;
    for (const UnitRules* r : {&early_, &late_}) {
        if (!forward_codes(*r)) most = std::max(most, 2 * weight_.rows * cast_padded(weight_.cols, r->w));
        if (in_blocks(r->w_back) && !back_codes(*r))
            most = std::max(most, 2 * weight_.cols * cast_padded(weight_.rows, r->w_back));
        if (directions_) most = std::max(most, 2 * weight_.rows * directions_->pitch());
    }
    return most;
}

Status RecipeProduct::load(DeviceArena& arena, DeviceArena& copies, const Stream& stream) {
    const CopySizes s = copy_sizes();
    NIBBLE_TRY(tiles_, copies.allocate(s.tiles));
    NIBBLE_TRY(back_, copies.allocate(s.back));
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

Status RecipeProduct::look_at_weight(const std::byte* published, const Stream& stream) const {
    const CastRule& rule = rules().w;
    if (!step_.samples || rule.format == CastFormat::bf16 || rule.rotate) return Ok{};
    return step_.samples->take(static_cast<size_t>(place_), OperandSamples::weights,
                               {.x = published + 2 * weight_.at, .rows = weight_.rows, .cols = weight_.cols},
                               weight_.rows, rule, {}, given(DelayedUnits::weights), stream);
}

Status RecipeProduct::look_at_rows(OperandSamples::Part part, const std::byte* x, int64_t n,
                                   const Stream& stream) const {
    const UnitRules& r = rules();
    const bool back = part == OperandSamples::gradients;
    const CastRule& rule = back ? r.dy : r.x;
    if (!step_.samples || step_.tokens != 0 || rule.format == CastFormat::bf16 || rule.rotate) return Ok{};
    if (back && (r.eden || r.plain_back)) return Ok{};
    return step_.samples->take(
        static_cast<size_t>(place_), part, {.x = x, .rows = n, .cols = back ? weight_.rows : weight_.cols}, step_.seq,
        rule, back ? row_random() : CastRandom{}, given(back ? DelayedUnits::gradients : DelayedUnits::inputs), stream);
}

Status RecipeProduct::publish(const std::byte* published, const Stream& stream) const {
    const UnitRules& r = rules();
    NIBBLE_CHECK(look_at_weight(published, stream));
    const cuda::CastSource from{.x = published + 2 * weight_.at, .rows = weight_.rows, .cols = weight_.cols};
    const bool forward = forward_codes(r), back = back_codes(r);
    NIBBLE_CHECK(forward ? publish_codes(from, r.w, true, one_rounding(), stream) : publish_values(from, stream));
    if (back) return one_rounding() ? Status(Ok{}) : publish_codes(from, r.w_back, false, true, stream);
    return draws() || r.plain_back || (!forward && one_copy()) ? Status(Ok{}) : publish_back_values(from, stream);
}

Status RecipeProduct::publish_codes(const cuda::CastSource& from, const CastRule& rule, bool forward, bool back,
                                    const Stream& stream) const {
    cuda::CastCodes to{.tiles = true};
    if (forward) to.rows = tiles_;
    if (back) to.columns = back_;
    if (in_blocks(rule)) {
        to.row_scales = {scales_, cuda::codes_pitch(weight_.cols) / fp8_group, 1};
        to.column_scales = cuda::code_scales(back_scales_, weight_.cols, weight_.rows, cuda::CodeScaling::tile);
    } else {
        to.scale = forward ? scales_ : back_scales_;
        to.amax = to.scale + 1;
        to.seen = seen(DelayedUnits::weights);
    }
    return cuda::cast_codes(from, rule, given(DelayedUnits::weights), to, stream);
}

Status RecipeProduct::publish_values(const cuda::CastSource& from, const Stream& stream) const {
    const UnitRules& r = rules();
    // The edges of tiles are not written, and the buffer may hold codes.
    if (forward_codes(early_)) NIBBLE_CHECK(fill_device(tiles_, 0, copy_sizes().tiles, stream));
    const std::byte* values = from.x;
    if (r.w.format != CastFormat::bf16) {
        std::byte* to = one_copy() ? back_ : step_.staging;
        NIBBLE_CHECK(in_blocks(r.w)
                         ? cuda::cast_blocks(from, r.w, {to, scales_}, stream)
                         : cuda::cast_values(from, r.w, {}, given(DelayedUnits::weights),
                                             {to, scales_, scales_ + 1, seen(DelayedUnits::weights)}, stream));
        values = to;
        if (r.x.stored)
            NIBBLE_CHECK(cuda::product_scales(step_.ends + 1, scales_, 1.0f / divisor_of(r.w), scales_ + 2, 1, stream));
    }
    const auto tiled = [&](const std::byte* of, int64_t cols, std::byte* tiles) {
        return cuda::make_operand(MatrixView{DType::bf16, weight_.rows, cols, of}, weight_.rows, 0, tiles, stream);
    };
    NIBBLE_CHECK(tiled(values, cast_padded(weight_.cols, r.w), tiles_));
    if (r.rank == 0) return Ok{};
    NIBBLE_CHECK(directions_->split(from.x, weight_.rows, step_.staging, nullptr, stream));
    return tiled(step_.staging, directions_->pitch(), along_);
}

Status RecipeProduct::publish_back_values(cuda::CastSource from, const Stream& stream) const {
    const CastRule& rule = rules().w_back;
    if (in_blocks(rule)) {
        from.down = true;
        NIBBLE_CHECK(cuda::cast_blocks(from, rule, {step_.staging, back_scales_}, stream));
        const MatrixView turned{DType::bf16, weight_.cols, cast_padded(weight_.rows, rule), step_.staging};
        return cuda::make_operand(turned, weight_.cols, 0, back_, stream);
    }
    from.down = !lies_square(rule);
    return cuda::cast_values(from, rule, {}, nullptr, {back_, back_scales_, back_scales_ + 1}, stream);
}

// Applies MS-EDEN to the weight of the forward product: its rounded values if they are NVFP4, else its BF16 values.
Status RecipeProduct::draw(const std::byte* published, const Stream& stream) const {
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

// The engine makes the blocks of fp8_block, except with power-of-two scales.
ActivationFormat RecipeProduct::reads_codes() const {
    const UnitRules& r = rules();
    const bool engines = r.x.format == CastFormat::fp8_block && forward_codes(r);
    return engines ? ActivationFormat::fp8_group128 : ActivationFormat::none;
}

Result<RecipeProduct::Input> RecipeProduct::input(const DeviceInput& from, int64_t n, DeviceStep& step) const {
    const UnitRules& r = rules();
    const std::byte* x = from.x;
    const float* amax = from.amax;
    Input in{.rows = {.x = x, .tokens = n}};
    if (from.ordered) {
        in.rows.codes = true;
        in.rows.group_scales = cuda::scales_after(const_cast<std::byte*>(x), n, weight_.cols);
        return in;
    }
    if (r.x.stored) {  // scales in the order of the engine's product
        if (step_.stored) NIBBLE_CHECK(look_at_rows(OperandSamples::inputs, x, n, step.stream));
        NIBBLE_TRY(const StoredInput s, stored_input(x, n, step_.recording, step));
        in.rows.x = s.x;
        NIBBLE_TRY(float* scales, step.scratch.allocate_array<float>(n));
        NIBBLE_CHECK(
            cuda::product_scales(s.scale ? s.scale : step_.ends + 1, scales_ + 2, 1.0f, scales, n, step.stream));
        in.rows.token_scales = scales;
        return in;
    }
    if (r.x.format == CastFormat::bf16) {
        if (has_scale(r.w)) {
            const FactorWanted by = by_weight(n);
            NIBBLE_TRY(float* scales, step.scratch.allocate_array<float>(n));
            NIBBLE_CHECK(cuda::product_scales(step_.ends + 1, by.other, by.constant, scales, n, step.stream));
            in.rows.token_scales = scales;
        }
        return in;
    }
    if (forward_codes(r)) {
        NIBBLE_CHECK(look_at_rows(OperandSamples::inputs, x, n, step.stream));
        NIBBLE_TRY(in.rows, coded_input(x, amax, n, step));
        return in;
    }
    if (r.rank > 0) {
        NIBBLE_TRY(std::byte * along, step.scratch.allocate(2 * n * directions_->pitch()));
        NIBBLE_TRY(std::byte * rest, step.scratch.allocate(2 * n * weight_.cols));
        NIBBLE_CHECK(directions_->split(x, n, along, rest, step.stream));
        in.along = along, x = rest;
    }
    NIBBLE_CHECK(look_at_rows(OperandSamples::inputs, x, n, step.stream));
    NIBBLE_TRY(
        const Quantized q,
        quantized({.x = x, .rows = n, .cols = weight_.cols, .amax = reads_amax() ? amax : nullptr}, r.x, {}, step,
                  given(DelayedUnits::inputs), step_.recording ? seen(DelayedUnits::inputs) : nullptr, by_weight(n)));
    in.rows.x = q.values;
    in.rows.token_scales = q.factor;
    if (in_blocks(r.x)) in.rows.group_scales = q.scale;
    return in;
}

// Calls the engine's rounding with a scale on the device, as for one expert that has all rows: `ends` are 0 and, read
// as an integer, more rows than there are.
Result<RecipeProduct::StoredInput> RecipeProduct::stored_input(const std::byte* x, int64_t n, bool record,
                                                               DeviceStep& step) const {
    if (record) NIBBLE_CHECK(cuda::see_largest(x, n * weight_.cols, seen(DelayedUnits::inputs), step.stream));
    if (!step_.stored) return StoredInput{.x = x};
    const float* const scale = given(DelayedUnits::inputs);
    NIBBLE_TRY(std::byte * rounded, step.scratch.allocate(2 * n * weight_.cols));
    NIBBLE_CHECK(cuda::quantize_inputs({.format = ActivationFormat::nvfp4,
                                        .x = x,
                                        .tokens = n,
                                        .cols = weight_.cols,
                                        .out = rounded,
                                        .experts = 1,
                                        .begin = reinterpret_cast<const int32_t*>(step_.ends),
                                        .expert_scales = scale},
                                       false, step.stream));
    return StoredInput{rounded, scale};
}

Result<cuda::ProductInput> RecipeProduct::coded_input(const std::byte* x, const float* amax, int64_t n,
                                                      DeviceStep& step) const {
    const CastRule& rule = rules().x;
    const int64_t groups = cuda::codes_pitch(weight_.cols) / fp8_group;
    cuda::ProductInput in{.codes = true, .tokens = n};
    if (n <= most_rollout_rows && reads_codes() == ActivationFormat::fp8_group128) {
        cuda::QuantizeInputs q{
            .format = ActivationFormat::fp8_group128, .x = x, .tokens = n, .cols = weight_.cols, .codes = true};
        NIBBLE_TRY(q.out, step.scratch.allocate(n * cuda::codes_pitch(weight_.cols)));
        NIBBLE_TRY(q.scales, step.scratch.allocate_array<float>(n * groups));
        NIBBLE_CHECK(cuda::quantize_inputs(q, step.overlap, step.stream));
        in.x = q.out, in.group_scales = q.scales;
        return in;
    }
    cuda::CastCodes to;
    NIBBLE_TRY(to.rows, step.scratch.allocate(n * cuda::codes_pitch(weight_.cols)));
    if (in_blocks(rule)) {
        NIBBLE_TRY(to.row_scales.at, step.scratch.allocate_array<float>(n * groups));
        to.row_scales.outer = groups, to.row_scales.group = 1;
        in.group_scales = to.row_scales.at;
    } else {
        NIBBLE_TRY(to.scale, step.scratch.allocate_array<float>(1));
        NIBBLE_TRY(to.amax, step.scratch.allocate_array<float>(1));
        to.seen = step_.recording ? seen(DelayedUnits::inputs) : nullptr;
        const FactorWanted by = by_weight(n);
        to.factor = {.other = by.other, .constant = by.constant, .count = n};
        NIBBLE_TRY(to.factor.out, step.scratch.allocate_array<float>(n));
        in.token_scales = to.factor.out;
    }
    NIBBLE_CHECK(cuda::cast_codes({.x = x, .rows = n, .cols = weight_.cols, .amax = reads_amax() ? amax : nullptr},
                                  rule, given(DelayedUnits::inputs), to, step.stream));
    in.x = to.rows;
    return in;
}

// With directions, the remainder of x has another maximum than x.
bool RecipeProduct::reads_amax() const {
    const UnitRules& r = rules();
    const bool of_all = of_tensor(r.x) || (r.x.format == CastFormat::nvfp4 && !r.x.row_scaled);
    return of_all && !r.delayed && r.rank == 0;
}

// Factor of each row of an input: its scale times the weight's.
FactorWanted RecipeProduct::by_weight(int64_t n) const {
    const UnitRules& r = rules();
    return {.other = scales_, .constant = 1.0f / (divisor_of(r.x) * divisor_of(r.w)), .count = n};
}

// The kernel choice depends on whether there are scales. For a description of unloaded weights this is a scale that is
// not read.
cuda::Operand RecipeProduct::operand(const UnitRules& r, const float* bias) const {
    static constexpr float of_description = 1.0f;
    const bool codes = forward_codes(r);
    return {.rows = weight_.rows,
            .cols = codes ? weight_.cols : cast_padded(weight_.cols, r.w),
            .tiles = tiles_,
            .codes = codes,
            .tile_scales = !in_blocks(r.w) ? nullptr
                           : scales_       ? scales_
                                           : &of_description,
            .bias = bias};
}

Status RecipeProduct::forward(const DeviceInput& from, int64_t n, float* y, int64_t y_stride, const float* bias,
                              DeviceStep& step) const {
    const DeviceScope scope(step);
    NIBBLE_TRY(const Input in, input(from, n, step));
    NIBBLE_CHECK(cuda::matmul(in.rows, operand(rules(), bias), y, y_stride, step.overlap, step.stream));
    if (!in.along) return Ok{};
    NIBBLE_TRY(float* more, step.scratch.allocate_array<float>(n * weight_.rows));
    const cuda::Operand w{.rows = weight_.rows, .cols = directions_->pitch(), .tiles = along_};
    NIBBLE_CHECK(cuda::matmul({.x = in.along, .tokens = n}, w, more, weight_.rows, false, step.stream));
    return cuda::add_rows(y, y_stride ? y_stride : weight_.rows, more, n, weight_.rows, step.stream);
}

Status RecipeProduct::forward_rounded(const DeviceInput& from, int64_t n, std::byte* y, const float* bias,
                                      DeviceStep& step) const {
    const DeviceScope scope(step);
    NIBBLE_TRY(const Input in, input(from, n, step));
    return cuda::rounded_matmul(in.rows, operand(rules(), bias), y, weight_.rows, step.overlap, step.stream);
}

bool RecipeProduct::rounds(int64_t n) const {
    return !directions_ && cuda::has_rounded_matmul(operand(early_, nullptr), n) &&
           cuda::has_rounded_matmul(operand(late_, nullptr), n);
}

Result<cuda::KernelChoice> RecipeProduct::describe(int64_t n) const {
    const UnitRules& r = rules();
    NIBBLE_TRY(cuda::KernelChoice choice, cuda::describe_matmul(operand(r, nullptr), n));
    choice.why +=
        (forward_codes(r) ? "; " : "; operands emulated in BF16: ") + rule_text(r.x) + " by " + rule_text(r.w);
    return choice;
}

int64_t RecipeProduct::split_size(int64_t n) const {
    return directions_ ? in_arena(2 * n * directions_->pitch()) + in_arena(2 * n * weight_.cols) : 0;
}

int64_t RecipeProduct::coded_input_size(int64_t n, const CastRule& rule) const {
    const int64_t pitch = cuda::codes_pitch(weight_.cols);
    return in_arena(n * pitch) + (in_blocks(rule) ? in_arena(4 * n * pitch / fp8_group) : 2 * in_arena(4));
}

int64_t RecipeProduct::scratch_bytes(int64_t n) const {
    int64_t most = 0;
    for (const UnitRules* r : {&early_, &late_})
        most = std::max(most, forward_codes(*r) ? coded_input_size(n, r->x) : quantized_size(n, weight_.cols, r->x));
    if (directions_) most += split_size(n) + in_arena(4 * n * weight_.rows);
    return most + in_arena(4 * n);
}

}  // namespace nibble
