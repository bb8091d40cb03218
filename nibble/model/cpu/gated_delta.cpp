#include "model/cpu/gated_delta.h"

#include "kernels/exp.h"
#include "model/sequence.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace nibble {
namespace {

constexpr float length_eps = 1e-6f;  // under the square root of a vector's length
constexpr int most_key_dim = 1024;

double softplus(double x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }

}  // namespace

Result<std::unique_ptr<Mixer>> load_mixer(const ModelConfig& model, const BlockConfig& block,
                                          const GatedDeltaConfig& config, WeightSource& weights) {
    return GatedDelta::load(model, block, config, weights);
}

Result<std::unique_ptr<Mixer>> GatedDelta::load(const ModelConfig& model, const BlockConfig& block,
                                                const GatedDeltaConfig& c, WeightSource& weights) {
    if (c.key_heads < 1 || c.value_heads < 1 || c.value_heads % c.key_heads != 0)
        return fail("{}: {} value heads do not divide into {} key heads", block.prefix, c.value_heads, c.key_heads);
    if (c.key_dim < 1 || c.key_dim > most_key_dim || c.value_dim < 1 || c.value_dim > most_key_dim)
        return fail("{}: heads of {} and {} dimensions are not in [1, {}]", block.prefix, c.key_dim, c.value_dim,
                    most_key_dim);
    if (weights.options().ssm_state != SsmStateFormat::f32)
        return fail("{}: states of gated delta nets are FP32; leave out --ssm-state", block.prefix);
    auto g = std::make_unique<GatedDelta>();
    g->prefix_ = block.prefix;
    g->eps_ = model.norm_eps;
    g->index_ = block.index;
    g->config_ = c;
    const int64_t width = c.channels() + c.inner(), heads = c.value_heads;
    if (c.by_channel && c.key_heads != heads)
        return fail("{}: {} heads of keys and {} of values must be equal", block.prefix, c.key_heads, heads);
    std::vector<WeightSource::Part> wide{{block.name("in_proj_qkv"), c.channels()},
                                         {block.name("in_proj_z"), c.inner()}};
    std::vector<WeightSource::Part> narrow{{block.name("in_proj_b"), heads}, {block.name("in_proj_a"), heads}};
    if (c.by_key_head) wide = {{block.name("in_proj_qkvz"), width}}, narrow = {{block.name("in_proj_ba"), 2 * heads}};
    std::vector<Convolution::Part> filters{{block.name("conv1d"), c.channels()}};
    if (c.by_channel) {
        wide = {{block.name("q_proj"), c.keys()},      {block.name("k_proj"), c.keys()},
                {block.name("v_proj"), c.inner()},     {block.name("f_a_proj"), c.key_dim},
                {block.name("g_a_proj"), c.value_dim}, {block.name("b_proj"), heads}};
        filters = {{block.name("q_conv1d"), c.keys()},
                   {block.name("k_conv1d"), c.keys()},
                   {block.name("v_conv1d"), c.inner()}};
    }
    constexpr auto own = WeightSource::Outputs::own;
    const std::string first = wide[0].module + ".weight";
    const RankShare* share = weights.share();
    if (share) {
        g->config_.key_heads = static_cast<int>(share->own_parts(first));
        g->config_.value_heads = g->config_.key_heads * c.values_per_key();
        g->heads_ = share->columns_like(first, c.inner());
    }
    if (c.by_channel) {
        NIBBLE_TRY(g->decay_out_, weights.linear(block.name("f_b_proj"), c.keys(), c.key_dim, false, own));
        NIBBLE_TRY(g->gate_out_, weights.linear(block.name("g_b_proj"), c.inner(), c.value_dim, false, own));
    } else {
        NIBBLE_TRY(g->gates_, weights.stack(narrow, model.hidden, false, own));
    }
    NIBBLE_TRY(g->in_, weights.stack(wide, model.hidden, false, own));
    const char* out = c.by_channel ? "o_proj" : "out_proj";
    NIBBLE_TRY(g->out_, weights.linear(block.name(out), model.hidden, c.inner(), false));
    NIBBLE_TRY(g->conv_, Convolution::load(std::move(filters), c.conv, false, weights, own));
    NIBBLE_TRY(g->a_, weights.vector(block.name("A_log"), heads));
    if (share) g->a_ = share->own_rows(g->a_, first);
    for (float& a : g->a_) a = static_cast<float>(-std::exp(double{a}));
    NIBBLE_TRY(g->dt_bias_, weights.own_vector(block.name("dt_bias"), c.decays()));
    const char* norm = c.by_channel ? "o_norm.weight" : "norm.weight";
    NIBBLE_TRY(g->norm_, weights.vector(block.name(norm), c.value_dim));
    // x / sqrt(sum(x^2) + e) = rms_norm(x) / sqrt(n) with epsilon e / n.
    const double n = c.key_dim;
    g->unit_eps_ = static_cast<float>(double{length_eps} / n);
    g->q_scale_.assign(static_cast<size_t>(c.keys()), static_cast<float>(1.0 / n));
    g->k_scale_.assign(static_cast<size_t>(c.keys()), static_cast<float>(1.0 / std::sqrt(n)));
    return std::unique_ptr<Mixer>(std::move(g));
}

StateLayout GatedDelta::state() const {
    return {.floats =
                conv_.state_floats() + config_.value_heads * delta_state_elements(config_.key_dim, config_.value_dim)};
}

std::vector<const Linear*> GatedDelta::linears() const {
    std::vector<const Linear*> list;
    for (const LinearStack* stack : {&in_, &gates_})
        for (const Linear& part : stack->parts) list.push_back(&part);
    for (const std::optional<Linear>* one : {&decay_out_, &gate_out_})
        if (*one) list.push_back(&**one);
    list.push_back(&out_);
    return list;
}

std::vector<std::span<const Linear>> GatedDelta::units() const {
    if (!config_.by_channel) return {in_.parts, gates_.parts, {&out_, 1}};
    return {in_.parts, {&*decay_out_, 1}, {&*gate_out_, 1}, {&out_, 1}};
}

std::array<int64_t, 4> GatedDelta::wide_parts() const {
    const int64_t values = int64_t{config_.values_per_key()} * config_.value_dim;
    return {config_.key_dim, config_.key_dim, values, values};
}

std::array<int64_t, 2> GatedDelta::gate_parts() const { return {config_.values_per_key(), config_.values_per_key()}; }

void GatedDelta::regroup(const float* from, std::span<const int64_t> parts, int64_t rows, bool back, float* to,
                         Workspace& work) const {
    int64_t head = 0;  // numbers of a key head
    for (const int64_t part : parts) head += part;
    const int64_t heads = config_.key_heads, row = heads * head;
    work.parallel_rows(rows, 2 * row, [&](int64_t first, int64_t last) {
        for (int64_t i = first * row; i < last * row; i += row) {
            int64_t inside = 0;  // a head
            for (const int64_t part : parts) {
                for (int64_t h = 0; h < heads; ++h) {
                    const int64_t by_head = i + h * head + inside, by_part = i + heads * inside + h * part;
                    std::copy_n(from + (back ? by_part : by_head), part, to + (back ? by_head : by_part));
                }
                inside += part;
            }
        }
    });
}

Result<GatedDelta::Inputs> GatedDelta::inputs(const Batch& batch, const float* x, Workspace& work,
                                              Observer* observer) const {
    const int64_t rows = batch.rows(), stride = width(), channels = config_.channels(), heads = config_.value_heads;
    const int64_t keys = config_.keys(), dim = config_.key_dim, decays = config_.decays();
    Inputs in{.projected = work.arena.floats(rows * stride),
              .raw = work.arena.floats(rows * channels),
              .qkv = work.arena.floats(rows * channels),
              .q = work.arena.floats(rows * keys),
              .k = work.arena.floats(rows * keys),
              .ba = work.arena.floats(rows * gate_columns()),
              .gate = nullptr,
              .gate_stride = config_.by_channel ? config_.inner() : stride,
              .beta = work.arena.floats(rows * heads),
              .decay = work.arena.floats(rows * config_.decays())};
    in.gate = config_.by_channel ? work.arena.floats(rows * config_.inner()) : in.projected + channels;
    if (config_.by_key_head) {
        const Arena::Scope scope(work.arena);
        float* wide = work.arena.floats(rows * stride);
        float* narrow = work.arena.floats(rows * 2 * heads);
        NIBBLE_CHECK(in_.forward(x, rows, wide, work, observer));
        NIBBLE_CHECK(gates_.forward(x, rows, narrow, work, observer));
        regroup(wide, wide_parts(), rows, false, in.projected, work);
        regroup(narrow, gate_parts(), rows, false, in.ba, work);
    } else if (config_.by_channel) {
        NIBBLE_CHECK(in_.forward(x, rows, in.projected, work, observer));
        NIBBLE_CHECK(project_gates(rows, in, work, observer));
    } else {
        NIBBLE_CHECK(in_.forward(x, rows, in.projected, work, observer));
        NIBBLE_CHECK(gates_.forward(x, rows, in.ba, work, observer));
    }
    conv_.forward(batch, in.projected, stride, index_, in.raw, work);
    work.parallel_rows(rows, 8 * channels, [&](int64_t first, int64_t last) {
        work.elementwise->activate(Activation::silu, in.raw + first * channels, nullptr, (last - first) * channels,
                                   work.bf16(), in.qkv + first * channels);
        for (int64_t i = first; i < last; ++i) {
            const float* row = in.qkv + i * channels;
            for (int64_t at = 0; at < keys; at += dim) {
                work.elementwise->rms_norm(row + at, q_scale_.data(), dim, unit_eps_, false, in.q + i * keys + at);
                work.elementwise->rms_norm(row + keys + at, k_scale_.data(), dim, unit_eps_, false,
                                           in.k + i * keys + at);
            }
            const float* ba = in.ba + i * gate_columns();
            for (int64_t h = 0; h < heads; ++h) in.beta[i * heads + h] = 1.0f / (1.0f + exp_f32(-ba[h]));
            for (int64_t d = 0; d < decays; ++d) {
                const double step = softplus(double{ba[heads + d]} + dt_bias_[d]);
                in.decay[i * decays + d] = static_cast<float>(std::exp(step * a_[d * heads / decays]));
            }
        }
    });
    return in;
}

Status GatedDelta::project_gates(int64_t rows, const Inputs& in, Workspace& work, Observer* observer) const {
    const Arena::Scope scope(work.arena);
    const int64_t heads = config_.value_heads, keys = config_.keys(), f = config_.key_dim, g = config_.value_dim;
    const int64_t first = config_.channels();
    float* decays = work.arena.floats(rows * keys);
    NIBBLE_CHECK(decay_out_->forward(columns(in, rows, first, f, work), rows, decays, work, observer));
    NIBBLE_CHECK(gate_out_->forward(columns(in, rows, first + f, g, work), rows, in.gate, work, observer));
    for (int64_t i = 0; i < rows; ++i) {
        std::copy_n(in.projected + i * width() + first + f + g, heads, in.ba + i * gate_columns());
        std::copy_n(decays + i * keys, keys, in.ba + i * gate_columns() + heads);
    }
    return Ok{};
}

float* GatedDelta::columns(const Inputs& in, int64_t rows, int64_t first, int64_t count, Workspace& work) const {
    float* copy = work.arena.floats(rows * count);
    for (int64_t i = 0; i < rows; ++i) std::copy_n(in.projected + i * width() + first, count, copy + i * count);
    return copy;
}

DeltaHead GatedDelta::head(const Inputs& in, int64_t row, int64_t tokens, int64_t head, float* state, float* y) const {
    const int64_t channels = config_.channels(), keys = config_.keys(), heads = config_.value_heads;
    const int64_t key = row * keys + head / config_.values_per_key() * config_.key_dim;
    const int64_t inner = config_.inner(), value = head * config_.value_dim, decays = config_.decays();
    return {.q = in.q + key,
            .k = in.k + key,
            .key_stride = keys,
            .v = in.qkv + row * channels + 2 * keys + value,
            .value_stride = channels,
            .decay = in.decay + row * decays + head * (decays / heads),
            .beta = in.beta + row * heads + head,
            .decay_stride = decays,
            .beta_stride = heads,
            .state = state,
            .y = y ? y + row * inner + value : nullptr,
            .y_stride = inner,
            .tokens = tokens,
            .key_dim = config_.key_dim,
            .value_dim = config_.value_dim,
            .decay_by_channel = config_.by_channel};
}

void GatedDelta::run_rule(const Batch& batch, const Inputs& in, float* y, Workspace& work) const {
    const Arena::Scope scope(work.arena);
    const int64_t elements = delta_state_elements(config_.key_dim, config_.value_dim), heads = config_.value_heads;
    std::vector<DeltaHead> list;
    for (size_t i = 0; i < batch.segments().size(); ++i) {
        const Segment& segment = batch.segments()[i];
        float* states = nullptr;
        if (segment.sequence) {
            states = segment.sequence->state(index_) + conv_.state_floats();
        } else {
            states = work.arena.floats(heads * elements);
            std::fill_n(states, heads * elements, 0.0f);
        }
        const auto tokens = static_cast<int64_t>(segment.tokens.size());
        for (int64_t h = 0; h < heads; ++h) list.push_back(head(in, batch.row(i), tokens, h, states + h * elements, y));
    }
    delta_rule(*work.delta, list, *work.pool);
    if (work.bf16()) {
        const int64_t inner = config_.inner();
        work.parallel_rows(batch.rows(), inner, [&](int64_t first, int64_t last) {
            work.elementwise->round_bf16(y + first * inner, (last - first) * inner);
        });
    }
}

void GatedDelta::gate(const Inputs& in, const float* y, int64_t rows, float* normed, float* gated,
                      Workspace& work) const {
    const int64_t inner = config_.inner(), dim = config_.value_dim;
    work.parallel_rows(rows, 6 * inner, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
            float* n = normed + i * inner;
            for (int64_t at = 0; at < inner; at += dim)
                work.elementwise->rms_norm(y + i * inner + at, norm_.data(), dim, eps_, work.bf16(), n + at);
            const float* z = in.gate + i * in.gate_stride;
            if (config_.by_channel)
                work.elementwise->gate(z, n, inner, work.bf16(), gated + i * inner);
            else
                work.elementwise->activate(Activation::silu, z, n, inner, work.bf16(), gated + i * inner);
        }
    });
}

Status GatedDelta::forward(const Batch& batch, const float* x, float* y, Workspace& work, Observer* observer) const {
    const Arena::Scope scope(work.arena);
    const int64_t rows = batch.rows();
    NIBBLE_TRY(const Inputs in, inputs(batch, x, work, observer));
    float* mixed = work.arena.floats(rows * config_.inner());
    run_rule(batch, in, mixed, work);
    float* normed = work.arena.floats(rows * config_.inner());
    gate(in, mixed, rows, normed, mixed, work);
    return forward_gathered(out_, heads_.get(), mixed, rows, y, work, observer);
}

}  // namespace nibble
