#include "model/cpu/mamba.h"

#include "model/sequence.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace nibble {
namespace {

// Computes log(1 + e^x) in FP64.
float softplus(float x) {
    const double wide = x;
    return static_cast<float>(wide > 0 ? wide + std::log1p(std::exp(-wide)) : std::log1p(std::exp(wide)));
}

// Returns whether each of `ranks` ranks can compute its heads alone: no norm covers heads of several ranks, and no
// random number depends on a head's index.
bool computes_own_heads(const MambaConfig& c, SsmStateFormat state, int ranks) {
    return (c.norm == MambaConfig::Norm::none || c.groups % ranks == 0) && state != SsmStateFormat::fp16_stochastic;
}

}  // namespace

Result<std::unique_ptr<Mixer>> load_mixer(const ModelConfig& model, const BlockConfig& block, const MambaConfig& config,
                                          WeightSource& weights) {
    return Mamba::load(block.prefix, model.hidden, model.norm_eps, block.index, config, weights);
}

Result<std::unique_ptr<Mixer>> Mamba::load(const std::string& prefix, int64_t hidden, float eps, int index,
                                           const MambaConfig& c, WeightSource& weights) {
    if (c.groups < 1 || c.heads < 1 || c.heads % c.groups != 0)
        return fail("{}: {} heads do not divide into {} groups", prefix, c.heads, c.groups);
    if (c.head_dim < 1 || c.head_dim > ssm_most_head_dim)
        return fail("{}: head_dim {} is not in [1, {}]", prefix, c.head_dim, ssm_most_head_dim);
    auto m = std::make_unique<Mamba>();
    m->prefix_ = prefix;
    m->hidden_ = hidden;
    m->eps_ = eps;
    m->index_ = index;
    m->config_ = c;
    m->state_format_ = weights.options().ssm_state;
    m->state_seed_ = weights.options().ssm_seed;
    const int64_t inner = m->inner(), channels = m->channels();
    const std::string in = prefix + ".in_proj", norm = prefix + ".norm.weight";
    const RankShare* share = weights.share();
    auto outputs = WeightSource::Outputs::gathered;
    if (share && computes_own_heads(c, m->state_format_, share->size())) {
        outputs = WeightSource::Outputs::own;
        m->config_.heads = static_cast<int>(share->own_parts(in + ".weight"));
        m->config_.groups = std::max(1, c.groups / share->size());
        m->heads_ = share->columns_like(in + ".weight", inner);
    }
    NIBBLE_TRY(m->in_proj_, weights.linear(in, inner + channels + c.heads, hidden, c.projection_bias, outputs));
    NIBBLE_TRY(m->out_proj_, weights.linear(prefix + ".out_proj", hidden, inner, c.projection_bias));
    NIBBLE_TRY(m->conv_, Convolution::load(prefix + ".conv1d", channels, c.conv, c.conv_bias, weights, outputs));
    const auto of_heads = [&](const char* name) {
        return m->heads_ ? weights.own_vector(prefix + name, c.heads) : weights.vector(prefix + name, c.heads);
    };
    NIBBLE_TRY(m->a_, of_heads(".A_log"));
    for (float& a : m->a_) a = static_cast<float>(-std::exp(double{a}));
    NIBBLE_TRY(m->d_, of_heads(".D"));
    NIBBLE_TRY(m->dt_bias_, of_heads(".dt_bias"));
    if (c.norm != MambaConfig::Norm::none) {
        NIBBLE_TRY(m->norm_, weights.vector(norm, inner));
        if (m->heads_) m->norm_ = share->own_rows(m->norm_, in + ".weight");
    }
    return std::unique_ptr<Mixer>(std::move(m));
}

StateLayout Mamba::state() const {
    const int64_t state = ssm_state_elements(config_.heads, config_.head_dim, config_.state);
    return {.floats = conv_.state_floats() + state * ssm_state_bytes(state_format_) / 4};
}

Result<Mamba::Inputs> Mamba::inputs(const Batch& batch, const float* x, Workspace& work, Observer* observer) const {
    const int64_t rows = batch.rows(), width = channels(), heads = config_.heads, stride = in_proj_.rows;
    Inputs in{.projected = work.arena.floats(rows * stride),
              .raw = work.arena.floats(rows * width),
              .xbc = work.arena.floats(rows * width),
              .dt = work.arena.floats(rows * heads),
              .decay = work.arena.floats(rows * heads)};
    NIBBLE_CHECK(in_proj_.forward(x, rows, in.projected, work, observer));
    scale(in.projected, rows, work.bf16(), work);
    conv_.forward(batch, in.projected + inner(), stride, index_, in.raw, work);
    work.parallel_rows(rows, 8 * width, [&](int64_t first, int64_t last) {
        work.elementwise->activate(Activation::silu, in.raw + first * width, nullptr, (last - first) * width,
                                   work.bf16(), in.xbc + first * width);
        for (int64_t i = first; i < last; ++i)
            for (int64_t h = 0; h < heads; ++h) {
                const float dt = softplus(in.projected[i * stride + inner() + width + h] + dt_bias_[h]);
                in.dt[i * heads + h] = std::max(dt, config_.dt_min);
                in.decay[i * heads + h] = static_cast<float>(std::exp(double{in.dt[i * heads + h]} * a_[h]));
            }
    });
    return in;
}

SsmScan Mamba::scan(const Inputs& in, int64_t row, int64_t tokens, float* y) const {
    const float* x = in.xbc + row * channels();
    return {.heads = config_.heads,
            .head_dim = config_.head_dim,
            .groups = config_.groups,
            .state_size = config_.state,
            .x = x,
            .b = x + inner(),
            .c = x + inner() + int64_t{config_.groups} * config_.state,
            .stride = channels(),
            .decay = in.decay + row * config_.heads,
            .dt = in.dt + row * config_.heads,
            .d = d_.data(),
            .y = y ? y + row * inner() : nullptr,
            .tokens = tokens,
            .format = state_format_,
            .stream = {.seed = state_seed_, .role = static_cast<uint64_t>(index_)}};
}

void Mamba::scale(float* projected, int64_t rows, bool bf16, Workspace& work) const {
    const auto& by = config_.scales;
    if (std::ranges::all_of(by, [](float s) { return s == 1.0f; })) return;
    const int64_t bc = int64_t{config_.groups} * config_.state;
    const std::array<int64_t, 5> widths{inner(), inner(), bc, bc, config_.heads};
    const int64_t stride = in_proj_.rows;
    work.parallel_rows(rows, stride, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
            float* row = projected + i * stride;
            for (size_t part = 0; part < widths.size(); ++part)
                for (const float* end = row + widths[part]; row < end; ++row) *row *= by[part];
        }
        if (bf16) work.elementwise->round_bf16(projected + first * stride, (last - first) * stride);
    });
}

const float* Mamba::gate(const float* projected, const float* y, int64_t rows, float* between, float* out,
                         Workspace& work) const {
    using enum MambaConfig::Norm;
    const int64_t n = inner(), group = n / config_.groups;
    const auto norm = [&](const float* x, float* to) {
        for (int64_t at = 0; at < n; at += group)
            work.elementwise->rms_norm(x + at, norm_.data() + at, group, eps_, work.bf16(), to + at);
    };
    work.parallel_rows(rows, 6 * n, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
            const float *z = projected + i * in_proj_.rows, *x = y + i * n;
            float *b = between + i * n, *o = out + i * n;
            if (config_.norm == before_gate) norm(x, b);
            if (config_.norm == before_gate)
                work.elementwise->activate(Activation::silu, z, b, n, work.bf16(), o);
            else
                work.elementwise->activate(Activation::silu, z, x, n, config_.norm == none && work.bf16(), b);
            if (config_.norm == after_gate) norm(b, o);
        }
    });
    return config_.norm == none ? between : out;
}

void Mamba::run_scan(const Batch& batch, const Inputs& in, float* y, Workspace& work) const {
    std::vector<float> fresh;
    for (size_t i = 0; i < batch.segments().size(); ++i) {
        const Segment& segment = batch.segments()[i];
        float* state = nullptr;
        if (segment.sequence) {
            state = segment.sequence->state(index_) + conv_.state_floats();
        } else {
            fresh.assign(static_cast<size_t>(this->state().floats), 0.0f);
            state = fresh.data();
        }
        SsmScan s = scan(in, batch.row(i), static_cast<int64_t>(segment.tokens.size()), y);
        s.position = batch.position(i);
        ssm_scan(*work.ssm, s, reinterpret_cast<std::byte*>(state), *work.pool);
    }
}

Status Mamba::forward(const Batch& batch, const float* x, float* y, Workspace& work, Observer* observer) const {
    const Arena::Scope scope(work.arena);
    const int64_t rows = batch.rows();
    NIBBLE_TRY(const Inputs in, inputs(batch, x, work, observer));
    float* mixed = work.arena.floats(rows * inner());
    run_scan(batch, in, mixed, work);
    float* between = work.arena.floats(rows * inner());
    const float* out = gate(in.projected, mixed, rows, between, mixed, work);
    return forward_gathered(out_proj_, heads_.get(), out, rows, y, work, observer);
}

}  // namespace nibble
