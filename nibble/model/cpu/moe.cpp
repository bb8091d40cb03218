#include "model/cpu/moe.h"

#include "kernels/exp.h"
#include "model/cpu/router.h"

#include <algorithm>
#include <cmath>

namespace nibble {

Result<std::unique_ptr<Mixer>> load_mixer(const ModelConfig& model, const BlockConfig& block, const MoeConfig& config,
                                          WeightSource& weights) {
    return Moe::load(model, block, config, weights);
}

Result<std::unique_ptr<Mixer>> Moe::load(const ModelConfig& model, const BlockConfig& block, const MoeConfig& config,
                                         WeightSource& weights) {
    const std::string& prefix = block.prefix;
    const int64_t hidden = model.hidden;
    NIBBLE_CHECK(check(config).within(prefix));
    auto moe = std::make_unique<Moe>();
    moe->config_ = config;
    moe->hidden_ = hidden;
    moe->share_ = weights.options().share;
    NIBBLE_TRY(moe->gate_, weights.linear(prefix + "." + config.gate, config.experts, hidden, config.gate_bias));
    moe->eps_ = model.norm_eps;
    if (!config.router_scale.empty()) {
        NIBBLE_TRY(moe->router_scale_, weights.vector(block.name(config.router_scale), hidden));
        const auto root = static_cast<float>(1.0 / std::sqrt(static_cast<double>(hidden)));
        for (float& scale : moe->router_scale_) scale *= root;
    }
    if (!config.experts_norm.empty()) {
        NIBBLE_TRY(moe->experts_norm_, Norm::load(model, block.name(config.experts_norm) + ".weight", hidden, weights));
    }
    if (!config.expert_scale.empty()) {
        NIBBLE_TRY(moe->expert_scale_, weights.vector(block.name(config.expert_scale), config.experts));
    }
    if (config.selection_bias) {
        NIBBLE_TRY(moe->selection_bias_, weights.vector(prefix + "." + config.selection_bias_name, config.experts));
    }
    if (!config.hash_table.empty()) {
        NIBBLE_TRY(moe->hash_table_,
                   weights.integers(block.name(config.hash_table), config.vocab, config.top_k, config.experts));
        for (int64_t row = 0; row < config.vocab; ++row)
            std::sort(moe->hash_table_.begin() + row * config.top_k,
                      moe->hash_table_.begin() + (row + 1) * config.top_k);
    }
    if (config.latent > 0) {
        NIBBLE_TRY(moe->to_latent_, weights.linear(prefix + ".fc1_latent_proj", config.latent, hidden, false));
        NIBBLE_TRY(moe->from_latent_, weights.linear(prefix + ".fc2_latent_proj", hidden, config.latent, false));
    }
    moe->experts_.reserve(config.experts);
    const std::string experts = block.name(config.experts_name);
    const bool stacked = config.stacked || weights.has(experts + ".gate_up_proj");
    for (int e = 0; e < config.experts; ++e) {
        NIBBLE_TRY(auto expert,
                   stacked ? Mlp::load_stacked(experts, moe->width(), config, e, weights)
                           : Mlp::load(fmt::format("{}.{}", experts, e), moe->width(), config.expert, weights));
        moe->experts_.push_back(std::move(expert));
    }
    if (config.shared.intermediate > 0) {
        NIBBLE_TRY(moe->shared_, Mlp::load(prefix + "." + config.shared_name, hidden, config.shared, weights));
    }
    if (config.shared_gate) {
        NIBBLE_TRY(moe->shared_gate_, weights.linear(prefix + "." + config.shared_gate_name, 1, hidden, false));
    }
    return std::unique_ptr<Mixer>(std::move(moe));
}

std::vector<const Linear*> Moe::linears() const {
    std::vector<const Linear*> all{&gate_};
    if (to_latent_) all.push_back(&*to_latent_);
    const auto append = [&](const Mlp& mlp) {
        const std::vector<const Linear*> some = mlp.linears();
        all.insert(all.end(), some.begin(), some.end());
    };
    for (const auto& expert : experts_) append(*expert);
    if (from_latent_) all.push_back(&*from_latent_);
    if (shared_) append(*shared_);
    if (shared_gate_) all.push_back(&*shared_gate_);
    return all;
}

std::vector<std::span<const Linear>> Moe::units() const {
    std::vector<std::span<const Linear>> all;
    if (to_latent_) all.push_back({&*to_latent_, 1});
    const auto append = [&](const Mlp& mlp) {
        for (const std::span<const Linear> unit : mlp.units()) all.push_back(unit);
    };
    for (const auto& expert : experts_) append(*expert);
    if (from_latent_) all.push_back({&*from_latent_, 1});
    if (shared_) append(*shared_);
    return all;
}

const float* Moe::router_rows(const float* x, int64_t rows, Workspace& work) const {
    if (router_scale_.empty()) return x;
    float* y = work.arena.floats(rows * hidden_);
    work.parallel_rows(rows, hidden_, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i)
            work.elementwise->rms_norm(x + i * hidden_, router_scale_.data(), hidden_, eps_, work.bf16(),
                                       y + i * hidden_);
    });
    return y;
}

const float* Moe::expert_rows(const float* x, int64_t rows, Workspace& work) const {
    if (experts_norm_.empty()) return x;
    float* y = work.arena.floats(rows * hidden_);
    work.parallel_rows(rows, hidden_, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) experts_norm_.apply(x + i * hidden_, y + i * hidden_, work);
    });
    return y;
}

// Routers with sigmoid scores (deepseek_v3, nemotron_h) compute their logits in FP32 also in a BF16 model; softmax
// routers are computed as other linears.
Result<Moe::Routing> Moe::choose(const Batch& batch, const float* x, int64_t rows, Workspace& work,
                                 Observer* observer) const {
    Routing r;
    const int64_t experts = config_.experts, k = config_.top_k;
    r.scores.resize(rows * experts);
    if (config_.router != MoeConfig::Router::sigmoid && config_.router != MoeConfig::Router::sqrt_softplus) {
        NIBBLE_CHECK(gate_.forward(x, rows, r.scores.data(), work, observer));
    } else {
        if (observer) {
            NIBBLE_CHECK(observer->input(gate_, x, rows, hidden_, {}));
        }
        const MatmulInput input{.x = x, .rows = rows, .stride = hidden_};
        work.matmul->matmul(gate_.weight, input, {r.scores.data(), experts}, *work.pool);
    }
    r.experts.resize(rows * k);
    r.weights.resize(rows * k);
    std::vector<int32_t> tokens;
    if (!hash_table_.empty())
        for (const Segment& segment : batch.segments())
            tokens.insert(tokens.end(), segment.tokens.begin(), segment.tokens.end());
    work.parallel_rows(rows, experts * (k + 10), [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
            if (!tokens.empty()) {
                std::copy_n(hash_table_.begin() + tokens[size_t(i)] * k, k, r.experts.begin() + i * k);
                weigh(config_, std::span(r.scores).subspan(i * experts, experts),
                      std::span(r.experts).subspan(i * k, k), std::span(r.weights).subspan(i * k, k));
                continue;
            }
            route(config_, std::span(r.scores).subspan(i * experts, experts), selection_bias_,
                  std::span(r.experts).subspan(i * k, k), std::span(r.weights).subspan(i * k, k));
            if (!expert_scale_.empty())
                for (int64_t slot = i * k; slot < (i + 1) * k; ++slot)
                    r.weights[slot] *= expert_scale_[r.experts[slot]];
        }
    });
    r.begin.assign(experts + 1, 0);
    for (const int32_t e : r.experts) ++r.begin[e + 1];
    for (int64_t e = 0; e < experts; ++e) r.begin[e + 1] += r.begin[e];
    std::vector<int64_t> next(r.begin.begin(), r.begin.end() - 1);
    r.rows.resize(rows * k);
    r.slots.resize(rows * k);
    for (int64_t slot = 0; slot < rows * k; ++slot) {
        const int64_t at = next[r.experts[slot]]++;
        r.rows[at] = static_cast<int32_t>(slot / k);
        r.slots[at] = slot;
    }
    return r;
}

Status Moe::run_expert(const Routing& r, int expert, const float* x, float* out, Workspace& work,
                       Observer* observer) const {
    const int64_t w = width(), begin = r.begin[expert], n = r.begin[expert + 1] - begin;
    const std::span<const int32_t> mine = std::span(r.rows).subspan(begin, n);
    const Arena::Scope scope(work.arena);
    float* in = work.arena.floats(n * w);
    work.parallel_rows(n, w, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
            std::copy_n(x + mine[i] * w, w, in + i * w);
            if (!config_.weigh_inputs) continue;
            const float weight = r.weights[r.slots[begin + i]];
            for (int64_t j = i * w; j < (i + 1) * w; ++j) in[j] *= weight;
            if (work.bf16()) work.elementwise->round_bf16(in + i * w, w);
        }
    });
    return experts_[expert]->forward_rows(in, n, out, work, observer, mine);
}

void Moe::add_expert(const Routing& r, int expert, const float* out, float* acc, Workspace& work) const {
    const int64_t w = width(), begin = r.begin[expert], n = r.begin[expert + 1] - begin;
    work.parallel_rows(n, 2 * w, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
            const float weight = config_.weigh_inputs ? 1.0f : r.weights[r.slots[begin + i]];
            const float* from = out + i * w;
            float* to = acc + r.rows[begin + i] * w;
            for (int64_t j = 0; j < w; ++j) to[j] += weight * from[j];
        }
    });
}

Result<const float*> Moe::outputs_of_ranks(const Routing& r, const float* x, Workspace& work) const {
    float* all = work.arena.floats(std::ssize(r.rows) * width());
    std::vector<RowRange> of;
    for (int rank = 0; rank < share_->size(); ++rank) {
        const RowRange experts = share_->experts(config_.experts, rank);
        of.push_back({r.begin[experts.begin], r.begin[experts.end]});
    }
    const RowRange own = share_->experts(config_.experts, share_->rank());
    for (auto e = static_cast<int>(own.begin); e < own.end; ++e)
        if (r.begin[e] < r.begin[e + 1]) NIBBLE_CHECK(run_expert(r, e, x, all + r.begin[e] * width(), work, nullptr));
    NIBBLE_CHECK(share_->gather_rows(all, width(), of, work));
    return all;
}

Status Moe::run_experts(const Routing& r, const float* x, float* acc, int64_t rows, Workspace& work,
                        Observer* observer) const {
    const int64_t w = width();
    const bool everything = observer && observer->every_expert();
    const Arena::Scope of_ranks(work.arena);
    const float* outputs = nullptr;
    if (share_) {
        NIBBLE_TRY(outputs, outputs_of_ranks(r, x, work));
    }
    work.parallel_rows(rows, w, [&](int64_t first, int64_t last) { std::fill(acc + first * w, acc + last * w, 0.0f); });
    for (int e = 0; e < config_.experts; ++e) {
        if (everything) {
            const Arena::Scope scope(work.arena);
            NIBBLE_CHECK(experts_[e]->forward_rows(x, rows, work.arena.floats(rows * w), work, observer, {}));
        }
        const int64_t n = r.begin[e + 1] - r.begin[e];
        if (n == 0) continue;
        const Arena::Scope scope(work.arena);
        if (outputs) {
            add_expert(r, e, outputs + r.begin[e] * w, acc, work);
            continue;
        }
        float* out = work.arena.floats(n * w);
        NIBBLE_CHECK(run_expert(r, e, x, out, work, everything ? nullptr : observer));
        add_expert(r, e, out, acc, work);
    }
    if (work.bf16())
        work.parallel_rows(rows, w, [&](int64_t first, int64_t last) {
            work.elementwise->round_bf16(acc + first * w, (last - first) * w);
        });
    return Ok{};
}

Status Moe::shared_weights(const float* x, int64_t rows, float* weights, Workspace& work, Observer* observer) const {
    NIBBLE_CHECK(shared_gate_->forward(x, rows, weights, work, observer));
    for (int64_t i = 0; i < rows; ++i) weights[i] = 1.0f / (1.0f + exp_f32(-weights[i]));
    return Ok{};
}

Status Moe::forward(const Batch& batch, const float* x, float* y, Workspace& work, Observer* observer) const {
    const int64_t rows = batch.rows();
    const Arena::Scope scope(work.arena);
    NIBBLE_TRY(const Routing routing, choose(batch, router_rows(x, rows, work), rows, work, observer));
    x = expert_rows(x, rows, work);
    if (to_latent_) {
        float* in = work.arena.floats(rows * width());
        float* acc = work.arena.floats(rows * width());
        NIBBLE_CHECK(to_latent_->forward(x, rows, in, work, observer));
        NIBBLE_CHECK(run_experts(routing, in, acc, rows, work, observer));
        NIBBLE_CHECK(from_latent_->forward(acc, rows, y, work, observer));
    } else {
        NIBBLE_CHECK(run_experts(routing, x, y, rows, work, observer));
    }
    if (shared_) {
        float* shared = work.arena.floats(rows * hidden_);
        NIBBLE_CHECK(shared_->forward_rows(x, rows, shared, work, observer, {}));
        if (shared_gate_) {
            float* weights = work.arena.floats(rows);
            NIBBLE_CHECK(shared_weights(x, rows, weights, work, observer));
            work.parallel_rows(rows, 2 * hidden_, [&](int64_t first, int64_t last) {
                for (int64_t i = first; i < last; ++i)
                    for (int64_t j = 0; j < hidden_; ++j) shared[i * hidden_ + j] *= weights[i];
                if (work.bf16()) work.elementwise->round_bf16(shared + first * hidden_, (last - first) * hidden_);
            });
        }
        work.parallel_rows(rows, 2 * hidden_, [&](int64_t first, int64_t last) {
            work.elementwise->add(shared + first * hidden_, (last - first) * hidden_, work.bf16(), y + first * hidden_);
        });
    }
    return Ok{};
}

}  // namespace nibble
