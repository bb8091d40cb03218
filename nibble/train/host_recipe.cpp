#include "train/host_recipe_units.h"

#include "formats/nvfp4.h"
#include "kernels/unpack.h"
#include "model/cpu/widen.h"
#include "model/gradients.h"
#include "train/stored_nvfp4.h"
#include "train/train_eden.h"
#include "train/train_flops.h"
#include "train/train_self_test.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace nibble {
namespace {

// Roles of random numbers; `directions` is for the initial directions.
enum Role : uint32_t { row_copy = 1, column_copy, weight_copy, input_copy, input_signs, weight_signs, directions };

std::vector<float> flipped(const float* x, int64_t rows, int64_t cols, int64_t stride, ThreadPool& pool) {
    std::vector<float> y(static_cast<size_t>(rows * cols));
    transpose(x, rows, cols, stride, y.data(), pool);
    return y;
}

// Sets the gradient of clipped inputs to zero. Rounded values follow their inputs (straight-through) only up to the
// largest code times the largest block scale.
void clear_clipped(const float* x, int64_t n, float input_scale, float* dx, ThreadPool& pool) {
    constexpr int64_t piece = 4096;
    const float most = e2m1_max * nvfp4_decode_scale(e4m3_from_float(e4m3_max), input_scale);
    pool.parallel_for((n + piece - 1) / piece, [&](int64_t part) {
        for (int64_t i = part * piece; i < std::min(n, (part + 1) * piece); ++i)
            if (magnitude(x[i]) > most) dx[i] = 0;
    });
}

std::vector<float> decoded(const CastOperand& o, int64_t cols) {
    std::vector<float> y(static_cast<size_t>(o.rows * cols));
    for (int64_t r = 0; r < o.rows; ++r) {
        const float scale = o.scale[o.scale.size() > 1 ? static_cast<size_t>(r) : 0] * (1.0f / o.divisor);
        for (int64_t c = 0; c < cols; ++c)
            y[static_cast<size_t>(r * cols + c)] = o.values[static_cast<size_t>(r * o.cols + c)] * scale;
    }
    return y;
}

}  // namespace

Result<std::unique_ptr<HostRecipe>> HostRecipe::create(const Model& model, const Parameters& parameters,
                                                       const TrainPrecision& precision, uint64_t seed, ThreadPool&) {
    NIBBLE_CHECK(train_self_test(precision, seed));
    std::unique_ptr<HostRecipe> products(new HostRecipe(parameters, precision, seed));
    int64_t layers = 0;
    for (const Block& block : model.blocks()) layers = std::max<int64_t>(layers, block.config().layer + 1);
    if (precision.first_bf16 + precision.last_bf16 > layers)
        return fail("precision: {} first and {} last layers in BF16, but the model has {} layers", precision.first_bf16,
                    precision.last_bf16, layers);
    for (const int64_t layer : precision.bf16_layers)
        if (layer >= layers)
            return fail("precision: bf16_layers has layer {}, but the model has {} layers", layer, layers);
    std::unordered_set<std::string> seen;
    for (const Block& block : model.blocks()) {
        const MixerConfig& mixer = block.config().mixer;
        const UnitPlace place{
            .layer = block.config().layer,
            .layers = layers,
            .mlp = std::holds_alternative<MlpConfig>(mixer) || std::holds_alternative<MoeConfig>(mixer)};
        const UnitRules early = unit_rules(precision, place, false), late = unit_rules(precision, place, true);
        for (const std::span<const Linear> unit : block.mixer().units()) {
            NIBBLE_CHECK(products->add_unit(unit, {}, early, late, place.layer));
            products->units_->list.back()->share = token_share(block.config(), unit[0].name);
            for (const Linear& part : unit) seen.insert(part.name);
        }
    }
    for (const Block& block : model.blocks())
        for (const Linear* linear : block.linears())  // routers
            if (!seen.contains(linear->name))
                NIBBLE_CHECK(products->add_unit({linear, 1}, {}, {}, {}, block.config().layer));
    NIBBLE_CHECK(products->add_unit({&model.head().linear(), 1}, model.config().head, {}, {}, -1));
    return products;
}

// `head`: the weight's tensor if its name is not the linear's name with ".weight".
Status HostRecipe::add_unit(std::span<const Linear> parts, const std::string& head, const UnitRules& early,
                            const UnitRules& late, int64_t layer) {
    auto unit = std::make_unique<Unit>();
    unit->name = parts[0].name;
    unit->number = static_cast<uint32_t>(units_->list.size());
    unit->layer = layer;
    unit->cols = parts[0].cols;
    unit->early = early;
    unit->late = late;
    for (const Linear& part : parts) {
        NIBBLE_TRY(const size_t id, parameters_.id(head.empty() ? part.name + ".weight" : head));
        unit->parts.push_back(id);
        unit->names.push_back(part.name);
        unit->rows += part.rows;
    }
    if (early.engine && unit->cols % 16 != 0)
        return fail("precision: {} has {} inputs, which is not a multiple of 16", unit->name, unit->cols);
    unit->inputs = units_->inputs.emplace(input_group(unit->name), unit.get()).first->second->delayed.data();
    if (!early.x.stored) unit->inputs = unit->delayed.data();
    for (DelayedScale& d : unit->delayed)
        if (early.delayed && (!early.x.stored || &d == unit->inputs))
            d.history.resize(static_cast<size_t>(precision_.amax_history));
    if (early.x.stored)
        unit->inputs->stored = true, unit->inputs->scale = 0, unit->inputs->largest = e2m1_max * e4m3_max;
    unit->delayed[2].largest = 57344;
    if (early.rank > 0) unit->directions = InputDirections(unit->cols, early.rank, random(*unit, directions));
    units_->by_name.emplace(unit->name, unit.get());
    units_->list.push_back(std::move(unit));
    return Ok{};
}

std::optional<float> HostRecipe::given(const Unit& unit, Side side) const {
    const DelayedScale& d = side == of_inputs ? *unit.inputs : unit.delayed[side];
    return rules(unit).delayed && d.scale > 0 ? std::optional<float>(d.scale) : std::nullopt;
}

CastRandom HostRecipe::random(const Unit& unit, uint32_t role) const {
    return {.id = 8 * unit.number + role, .draw = (seed_ << 20) + static_cast<uint64_t>(step_)};
}

HostRecipe::Unit& HostRecipe::find(std::span<const Linear> unit) const { return *units_->by_name.at(unit[0].name); }

void HostRecipe::look(std::optional<CastQuality>& seen, const float* x, int64_t cols, int64_t stride,
                      const CastRule& rule, const CastOperand& operand) const {
    if (watched_row_ && rule.format != CastFormat::bf16 && !rule.rotate) seen = cast_quality(x, cols, stride, operand);
}

std::vector<UnitQuality> HostRecipe::quality() const {
    std::vector<UnitQuality> list;
    for (const auto& u : units_->list)
        if (u->inputs_seen || u->weights_seen || u->gradients_seen)
            list.push_back({u->name, u->layer, u->inputs_seen, u->weights_seen, u->gradients_seen});
    return list;
}

const UnitRules& HostRecipe::rules(const Unit& unit) const { return late_ ? unit.late : unit.early; }

HostRecipe::Unit& HostRecipe::fresh(std::span<const Linear> unit) {
    Unit& u = find(unit);
    if (u.version == parameters_.version() && u.epoch == epoch_) return u;
    // Plain transposes stay valid in the next epoch, because they depend on the parameters only.
    if (u.version != parameters_.version() || rules(u).quantized) u.has_back = false;
    u.has_forward = false;
    u.version = parameters_.version();
    u.epoch = epoch_;
    return u;
}

Matrix HostRecipe::stacked(const Unit& unit) const {
    Matrix all(parameters_.published(unit.parts[0]).dtype, unit.rows, unit.cols);
    std::byte* to = all.data.data();
    for (const size_t id : unit.parts) {
        const MatrixView part = parameters_.published(id);
        std::memcpy(to, part.data, static_cast<size_t>(part.bytes()));
        to += part.bytes();
    }
    return all;
}

std::vector<float> HostRecipe::weights(const Unit& unit) const {
    std::vector<float> w(static_cast<size_t>(unit.rows * unit.cols));
    widen(stacked(unit).view(), w.data());
    return w;
}

size_t HostRecipe::units() const { return units_->list.size(); }

ForwardWeight HostRecipe::forward_weight(size_t unit) const {
    const Unit& u = *units_->list[unit];
    ForwardWeight w{.cols = u.cols, .rules = rules(u)};
    if (w.rules.x.stored) w.input_scale = u.inputs->scale;
    int64_t row = 0;
    for (size_t p = 0; p < u.parts.size(); ++p) {
        w.parts.push_back({.name = u.names[p], .id = u.parts[p], .first_row = row});
        row += parameters_.tensors()[u.parts[p]].rows();
    }
    return w;
}

CastOperand HostRecipe::forward_operand(size_t unit, ThreadPool& pool) const {
    const Unit& u = *units_->list[unit];
    return cast_weights(u, weights(u), pool);
}

CastOperand HostRecipe::cast_weights(const Unit& u, const std::vector<float>& w, ThreadPool& pool) const {
    return cast_rows(w.data(), u.rows, u.cols, u.cols, rules(u).w, {}, given(u, of_weights), pool);
}

void HostRecipe::pack_forward(Unit& u, ThreadPool& pool) {
    const UnitRules& r = rules(u);
    const std::vector<float> w = weights(u);
    CastOperand o = cast_weights(u, w, pool);
    if (recording_) u.delayed[1].seen = std::max(u.delayed[1].seen, o.amax);
    look(u.weights_seen, w.data(), u.cols, u.cols, r.w, o);
    u.served.reset();
    if (r.engine) {
        QuantMatrix codes(Format::nvfp4, u.rows, u.cols);
        store_nvfp4(o, 0, codes);
        if (auto packed = prepack(codes.view(), pool); packed.ok()) u.served = *std::move(packed);
    }
    // with `engine`: the weights have NaN, and so will the loss
    if (!u.served) u.forward = PackedOperand(std::move(o), pool);
    if (r.rank > 0) {
        CastOperand b{.rows = u.rows, .cols = u.directions.rank(), .scale = {1.0f}};
        b.values.resize(static_cast<size_t>(b.rows * b.cols));
        u.directions.split(w.data(), u.rows, b.values.data(), nullptr, pool);
        u.rank_term = PackedOperand(std::move(b), pool);
    }
    u.has_forward = true;
}

bool HostRecipe::replaces(std::span<const Linear> unit) const {
    const UnitRules& r = rules(find(unit));
    return r.quantized && (r.x.format != CastFormat::bf16 || r.w.format != CastFormat::bf16);
}

void HostRecipe::forward(std::span<const Linear> unit, const float* x, int64_t n, const MatmulOutput& out,
                         Workspace& work) {
    Unit& u = fresh(unit);
    const UnitRules& r = rules(u);
    ThreadPool& pool = *work.pool;
    if (!u.has_forward) pack_forward(u, pool);
    std::vector<float> rest, more;
    // Biases of stacked linears, some of which may have none.
    std::vector<float> bias;
    MatmulOutput to = out;
    if (!out.bias && std::ranges::any_of(unit, [](const Linear& l) { return !l.bias.empty(); })) {
        for (const Linear& l : unit) {
            bias.insert(bias.end(), l.bias.begin(), l.bias.end());
            if (l.bias.empty()) bias.insert(bias.end(), static_cast<size_t>(l.rows), 0.0f);
        }
        to.bias = bias.data();
    }
    if (u.served) return engine_forward(u, x, n, to, work);
    if (r.rank > 0) {
        CastOperand a{.rows = n, .cols = u.directions.rank(), .scale = {1.0f}};
        a.values.resize(static_cast<size_t>(n * a.cols));
        rest.resize(static_cast<size_t>(n * u.cols));
        u.directions.split(x, n, a.values.data(), rest.data(), pool);
        more.resize(static_cast<size_t>(n * u.rows));
        operand_product(a, u.rank_term, {more.data(), u.rows}, nullptr, *work.matmul, pool);
    }
    const float* source = r.rank > 0 ? rest.data() : x;
    const CastOperand o = cast_rows(source, n, u.cols, u.cols, r.x, {}, given(u, of_inputs), pool);
    look(u.inputs_seen, source, u.cols, u.cols, r.x, o);
    if (recording_) u.inputs->seen = std::max(u.inputs->seen, o.amax);
    operand_product(o, u.forward, to, r.rank > 0 ? more.data() : nullptr, *work.matmul, pool);
}

// x is already BF16. Inputs without a scale stay BF16.
void HostRecipe::engine_forward(Unit& u, const float* x, int64_t n, const MatmulOutput& out, Workspace& work) {
    const UnitRules& r = rules(u);
    if (r.x.stored && recording_)
        for (int64_t i = 0; i < n * u.cols; ++i) u.inputs->seen = std::max(u.inputs->seen, magnitude(x[i]));
    const std::optional<float> scale = given(u, of_inputs);
    if (scale && watched_row_)
        look(u.inputs_seen, x, u.cols, u.cols, r.x, cast_rows(x, n, u.cols, u.cols, r.x, {}, scale, *work.pool));
    MatmulInput in{.x = x, .rows = n, .stride = u.cols};
    if (scale) in.activation = ActivationFormat::nvfp4, in.input_scale = *scale;
    work.matmul->matmul(*u.served, in, out, *work.pool);
}

// Returns W or x for the backward pass: the codes of the forward product if they are NVFP4, else BF16 values.
std::vector<float> HostRecipe::used_weights(Unit& u, ThreadPool& pool) const {
    std::vector<float> w = weights(u);
    const CastRule& rule = rules(u).w;
    if (rule.format != CastFormat::nvfp4) return w;
    return decoded(cast_rows(w.data(), u.rows, u.cols, u.cols, rule, {}, {}, pool), u.cols);
}

std::vector<float> HostRecipe::used_inputs(const Unit& u, const float* x, int64_t n, ThreadPool& pool) const {
    const UnitRules& r = rules(u);
    std::vector<float> in(x, x + n * u.cols);
    if (r.rank > 0) {
        std::vector<float> a(static_cast<size_t>(n * u.directions.rank()));
        u.directions.split(x, n, a.data(), in.data(), pool);
    }
    if (r.x.format != CastFormat::nvfp4) return in;
    return decoded(cast_rows(in.data(), n, u.cols, u.cols, r.x, {}, {}, pool), u.cols);
}

void HostRecipe::pack_back(Unit& u, ThreadPool& pool) {
    const UnitRules& r = rules(u);
    if (!r.quantized || r.plain_back) {
        std::vector<MatrixView> parts;
        for (const size_t id : u.parts) parts.push_back(parameters_.published(id));
        auto packed = prepack_transposed(parts, pool);
        u.transposed = *std::move(packed);  // cannot fail for BF16 and F32
    } else if (r.eden) {
        const std::vector<float> w = used_weights(u, pool);
        const std::vector<float> w_t = flipped(w.data(), u.rows, u.cols, u.cols, pool);
        CastRandom draws = random(u, weight_copy);
        draws.group_step = static_cast<uint64_t>(u.cols);
        u.back =
            PackedOperand(eden_rows(w_t.data(), u.cols, u.rows, u.rows, draws, random(u, input_signs), 0, pool), pool);
    } else if (r.dy.format == CastFormat::bf16) {  // the weights of the forward product as numbers
        const std::vector<float> w = used_weights(u, pool);
        CastOperand o{.rows = u.cols, .cols = u.rows, .values = flipped(w.data(), u.rows, u.cols, u.cols, pool)};
        o.scale = {1.0f};
        u.back = PackedOperand(std::move(o), pool);
    } else {
        const std::vector<float> w = weights(u);
        const bool same = r.w_back.square || r.w_back.format == CastFormat::fp8;
        const std::optional<float> scale = given(u, of_weights);
        if (same) {
            u.back = PackedOperand(
                transposed_cast(cast_rows(w.data(), u.rows, u.cols, u.cols, r.w_back, {}, scale, pool), u.cols, pool),
                pool);
        } else {
            const std::vector<float> w_t = flipped(w.data(), u.rows, u.cols, u.cols, pool);
            u.back = PackedOperand(cast_rows(w_t.data(), u.cols, u.rows, u.rows, r.w_back, {}, {}, pool), pool);
        }
    }
    u.has_back = true;
}

void HostRecipe::input_gradient(std::span<const Linear> unit, const float* x, const float* dy, int64_t n,
                                int64_t stride, float* dx, Workspace& work) {
    Unit& u = fresh(unit);
    const UnitRules& r = rules(u);
    ThreadPool& pool = *work.pool;
    if (!u.has_back) pack_back(u, pool);
    if (!r.quantized || r.plain_back) {
        work.matmul->matmul(u.transposed, {.x = dy, .rows = n, .stride = stride}, {dx, u.cols}, pool);
        return;
    }
    CastRandom draws = random(u, row_copy);
    draws.first_outer = row_tokens_;
    draws.outer_step = static_cast<uint64_t>((u.back.cols() + 15) / 16);
    const std::optional<float> scale = given(u, of_gradients);
    const CastOperand o = r.eden ? eden_rows(dy, n, u.rows, stride, draws, random(u, input_signs), 0, pool)
                                 : cast_rows(dy, n, u.rows, stride, r.dy, draws, scale, pool);
    if (!r.eden) look(u.gradients_seen, dy, u.rows, stride, r.dy, o);
    // For an expert this is dY before it is weighed, which is larger than the operand of the weight gradient.
    if (recording_) u.delayed[2].seen = std::max(u.delayed[2].seen, o.amax);
    operand_product(o, u.back, {dx, u.cols}, nullptr, *work.matmul, pool);
    if (const auto input_scale = given(u, of_inputs); input_scale && r.x.stored)
        clear_clipped(x, n * u.cols, *input_scale, dx, pool);
}

void HostRecipe::plain_weight_gradient(const Unit& u, const float* x, const float* dy_t, int64_t n, float* dw,
                                       Workspace& work) const {
    const PackedMatrix x_t = pack_transposed(x, n, u.cols, u.cols, *work.pool);
    work.matmul->matmul(x_t, {.x = dy_t, .rows = u.rows, .stride = n}, {dw, u.cols}, *work.pool);
}

void HostRecipe::cast_weight_gradient(Unit& u, const float* x, const float* dy_t, int64_t n, float* dw,
                                      Workspace& work) {
    const UnitRules& r = rules(u);
    ThreadPool& pool = *work.pool;
    CastRandom dy_draws = random(u, column_copy), x_draws = random(u, input_copy);
    dy_draws.first_group = x_draws.first_group = row_groups_;
    dy_draws.group_step = static_cast<uint64_t>(u.rows);
    x_draws.group_step = static_cast<uint64_t>(u.cols);
    CastOperand dy_o, x_o;
    if (r.eden) {
        const std::vector<float> in = used_inputs(u, x, n, pool);
        const std::vector<float> x_t = flipped(in.data(), n, u.cols, u.cols, pool);
        const CastRandom signs = random(u, weight_signs);
        dy_o = eden_rows(dy_t, u.rows, n, n, dy_draws, signs, row_tokens_, pool);
        x_o = eden_rows(x_t.data(), u.cols, n, n, x_draws, signs, row_tokens_, pool);
    } else if (r.x_t.stored) {  // the operand of the forward product
        dy_o = cast_rows(dy_t, u.rows, n, n, r.dy_t, dy_draws, {}, pool);
        x_o = transposed_cast(cast_rows(x, n, u.cols, u.cols, r.x, {}, given(u, of_inputs), pool), u.cols, pool);
    } else {
        const std::vector<float> in = r.rank > 0 ? used_inputs(u, x, n, pool) : std::vector<float>(x, x + n * u.cols);
        const std::vector<float> x_t = flipped(in.data(), n, u.cols, u.cols, pool);
        dy_o = cast_rows(dy_t, u.rows, n, n, r.dy_t, dy_draws, given(u, of_gradients), pool);
        x_o = cast_rows(x_t.data(), u.cols, n, n, r.x_t, x_draws, given(u, of_inputs), pool);
    }
    if (recording_) u.delayed[2].seen = std::max(u.delayed[2].seen, dy_o.amax);
    operand_product(dy_o, PackedOperand(std::move(x_o), pool), {dw, u.cols}, nullptr, *work.matmul, pool);
    if (r.rank == 0) return;
    // + (dy^T A) P^T
    const int64_t rank = u.directions.rank();
    std::vector<float> a(static_cast<size_t>(n * rank)), turned(static_cast<size_t>(u.rows * rank)),
        more(static_cast<size_t>(u.rows * u.cols));
    u.directions.split(x, n, a.data(), nullptr, pool);
    const PackedMatrix a_t = pack_transposed(a.data(), n, rank, rank, pool);
    work.matmul->matmul(a_t, {.x = dy_t, .rows = u.rows, .stride = n}, {turned.data(), rank}, pool);
    const PackedMatrix p = pack_rows(u.directions.p(), u.cols, rank, rank, pool);
    work.matmul->matmul(p, {.x = turned.data(), .rows = u.rows, .stride = rank}, {more.data(), u.cols}, pool);
    for (size_t i = 0; i < more.size(); ++i) dw[i] += more[i];
    if (recording_) u.directions.observe(x, a.data(), n, pool);
}

Status HostRecipe::weight_gradient(std::span<const Linear> unit, const float* x, const float* dy, int64_t n,
                                   int64_t stride, Workspace& work, GradientSink& sink) {
    const Arena::Scope scope(work.arena);
    Unit& u = fresh(unit);
    float* dy_t = work.arena.floats(u.rows * n);
    float* dw = work.arena.floats(u.rows * u.cols);
    transpose(dy, n, u.rows, stride, dy_t, *work.pool);
    const UnitRules& r = rules(u);
    if (r.quantized && !r.plain_back) {
        cast_weight_gradient(u, x, dy_t, n, dw, work);
    } else {
        plain_weight_gradient(u, x, dy_t, n, dw, work);
        if (r.rank > 0 && recording_) {
            std::vector<float> a(static_cast<size_t>(n * u.directions.rank()));
            u.directions.split(x, n, a.data(), nullptr, *work.pool);
            u.directions.observe(x, a.data(), n, *work.pool);
        }
    }
    int64_t row = 0;
    for (const Linear& part : unit) {
        NIBBLE_CHECK(sink.add(part.name + ".weight", dw + row * u.cols, part.rows, u.cols));
        if (!part.bias.empty()) {
            float* sums = work.arena.floats(part.rows);
            column_sums(dy + row, n, part.rows, stride, sums, work);
            NIBBLE_CHECK(sink.add(part.name + ".bias", sums, part.rows, 1));
        }
        row += part.rows;
    }
    return Ok{};
}

std::vector<UnitLine> HostRecipe::table() const {
    const auto pair = [](const CastRule& a, const CastRule& b) {
        const std::string left = rule_text(a), right = rule_text(b);
        return left == right ? left : left + " x " + right;
    };
    std::vector<UnitLine> lines;
    for (const auto& u : units_->list) {
        const UnitRules& r = u->early;
        const bool f32 = precision_.recipe == TrainRecipe::fp32;
        UnitLine line{.name = u->name, .layer = u->layer};
        line.rows = u->rows, line.cols = u->cols, line.share = u->share, line.fp4 = fp4_use(r);
        if (!r.quantized) {
            line.forward = f32 ? "FP32" : "BF16";
            line.input_gradient = line.weight_gradient = "FP32";
        } else {
            line.forward = pair(r.x, r.w) + (r.rank > 0 ? fmt::format(" + rank {}", u->directions.rank()) : "");
            line.input_gradient = r.plain_back ? "FP32" : r.eden ? "NVFP4 MS-EDEN" : pair(r.dy, r.w_back);
            line.weight_gradient = r.plain_back ? "FP32" : r.eden ? "NVFP4 MS-EDEN" : pair(r.dy_t, r.x_t);
        }
        lines.push_back(std::move(line));
    }
    return lines;
}

bool HostRecipe::sees_neighbours() const {
    return std::ranges::any_of(units_->list, [&](const auto& u) { return nibble::sees_neighbours(rules(*u)); });
}

}  // namespace nibble
