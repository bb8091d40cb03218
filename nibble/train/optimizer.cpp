#include "train/optimizer.h"

#include "base/philox.h"
#include "formats/minifloat.h"
#include "kernels/unpack.h"
#include "model/gradients.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace nibble {
namespace {

constexpr int64_t state_run = 1 << 14;  // elements per task, a multiple of 4

// Draws 32 random bits per element; four elements share a Philox block.
class Draws {
public:
    Draws(uint64_t seed, int64_t step, size_t id)
        : seed_(seed), step_(static_cast<uint64_t>(step)), id_(static_cast<uint32_t>(id)) {}
    uint32_t operator()(size_t element) {
        const uint64_t group = element / 4;
        if (group != group_) {
            group_ = group;
            // The last counter word separates these from the random bits of recipes, where it is 0.
            block_ = philox4x32({{static_cast<uint32_t>(group), static_cast<uint32_t>(seed_ >> 32), id_, 1}},
                                static_cast<uint32_t>(seed_), static_cast<uint32_t>(step_));
        }
        return block_.word[element % 4];
    }

private:
    uint64_t seed_, step_, group_ = ~uint64_t{0};
    uint32_t id_;
    PhiloxBlock block_{};
};

struct NoDraws {
    uint32_t operator()(size_t) const { return 0; }
};

float number(float x) { return x; }
float number(uint16_t x) { return bf16_to_float(x); }
void keep(float& to, float x, uint32_t) { to = x; }
void keep(uint16_t& to, float x, uint32_t bits) {
    to = static_cast<uint16_t>((float_bits(x) + (bits & 0xFFFFu)) >> 16);
}

// Calls work(begin, end, draws) for runs of a state of type T.
template <class T, class Work>
void over_runs(std::vector<T>& state, const Draws& draws, ThreadPool& pool, const Work& work) {
    const auto n = std::ssize(state);
    pool.parallel_for((n + state_run - 1) / state_run, [&](int64_t run) {
        const auto begin = static_cast<size_t>(run * state_run),
                   end = static_cast<size_t>(std::min(n, (run + 1) * state_run));
        if constexpr (std::is_same_v<T, uint16_t>)
            work(begin, end, Draws(draws));
        else
            work(begin, end, NoDraws());
    });
}

StateNumbers zeros(size_t count, bool bf16) {
    if (bf16) return std::vector<uint16_t>(count);
    return std::vector<float>(count);
}

}  // namespace

struct Optimizer::Adam {
    float beta2, rest1, rest2, epsilon, rate, root;
};

float clip_factor(double norm, double limit) {
    if (!(limit > 0) || norm <= limit) return 1.0f;
    return static_cast<float>(limit / norm);
}

Optimizer::Optimizer(const Parameters& parameters, const TrainOptimizer& options, std::span<const size_t> matrices,
                     const MatmulKernels& matmul, uint64_t seed, const TrainRanks& ranks)
    : options_(options), matmul_(&matmul), seed_(seed), states_(parameters.count()) {
    if (options.kind == OptimizerKind::muon)
        for (const size_t id : matrices) states_[id].muon = true;
    for (size_t id = 0; id < states_.size(); ++id) {
        State& state = states_[id];
        const size_t count = ranks.owns(id) ? parameters.master(id).size() : 0;
        state.m = zeros(count, options.bf16_states);
        state.v = zeros(state.muon ? 0 : count, options.bf16_states);
    }
}

void Optimizer::adam(const Adam& a, const Update& u, State& state, ThreadPool& pool) const {
    std::visit(
        [&]<class T>(std::vector<T>& m) {
            auto& v = std::get<std::vector<T>>(state.v);
            over_runs(m, {seed_, steps_, u.id}, pool, [&](size_t begin, size_t end, auto draws) {
                for (size_t j = begin; j < end; ++j) {
                    const float g = u.clip * u.gradient[j];
                    const float old_m = number(m[j]), old_v = number(v[j]);
                    const float new_m = old_m + a.rest1 * (g - old_m);
                    const float new_v = a.beta2 * old_v + a.rest2 * (g * g);
                    u.w[j] = u.w[j] * u.keep - a.rate * (new_m / (std::sqrt(new_v) / a.root + a.epsilon));
                    const uint32_t bits = draws(j);
                    keep(m[j], new_m, bits);
                    keep(v[j], new_v, bits >> 16);
                }
            });
        },
        state.m);
}

void Optimizer::muon(double learning_rate, int64_t rows, const Update& u, State& state, ThreadPool& pool) const {
    const auto momentum = static_cast<float>(options_.momentum);
    const auto cols = std::ssize(u.w) / rows;
    std::vector<float> direction(u.w.size());
    std::visit(
        [&]<class T>(std::vector<T>& m) {
            over_runs(m, {seed_, steps_, u.id}, pool, [&](size_t begin, size_t end, auto draws) {
                for (size_t j = begin; j < end; ++j) {
                    const float g = u.clip * u.gradient[j], next = momentum * number(m[j]) + g;
                    direction[j] = g + momentum * next;
                    keep(m[j], next, draws(j));
                }
            });
        },
        state.m);
    orthogonalize(direction, rows, cols, *matmul_, pool);
    const auto rate = static_cast<float>(learning_rate * 0.2 * std::sqrt(static_cast<double>(std::max(rows, cols))));
    for (size_t j = 0; j < direction.size(); ++j) u.w[j] = u.w[j] * u.keep - rate * direction[j];
}

void Optimizer::update(Parameters& parameters, const GradientTree& gradients, double learning_rate, float clip,
                       ThreadPool& pool) {
    ++steps_;
    const auto t = static_cast<double>(steps_);
    const Adam of_adam{.beta2 = static_cast<float>(options_.beta2),
                       .rest1 = static_cast<float>(1 - options_.beta1),
                       .rest2 = static_cast<float>(1 - options_.beta2),
                       .epsilon = static_cast<float>(options_.epsilon),
                       .rate = static_cast<float>(learning_rate / (1 - std::pow(options_.beta1, t))),
                       .root = static_cast<float>(std::sqrt(1 - std::pow(options_.beta2, t)))};
    const auto decayed = static_cast<float>(1 - learning_rate * options_.weight_decay);
    for (size_t id = 0; id < parameters.count(); ++id) {
        const Update u{.id = id,
                       .gradient = gradients.gradient(id),
                       .w = parameters.master(id),
                       .clip = clip,
                       .keep = parameters.matrix(id) ? decayed : 1.0f};
        if (u.gradient.empty()) continue;
        if (states_[id].muon)
            muon(learning_rate, parameters.tensors()[id].shape[0], u, states_[id], pool);
        else
            adam(of_adam, u, states_[id], pool);
    }
}

void orthogonalize(std::span<float> u, int64_t rows, int64_t cols, const MatmulKernels& matmul, ThreadPool& pool) {
    const int64_t r = std::min(rows, cols), c = std::max(rows, cols);
    double squares = 0;
    for (const float x : u) squares += double{x} * double{x};
    const auto scale = static_cast<float>(1 / (std::sqrt(squares) + 1e-7));
    std::vector<float> x(u.size()), next(u.size()), a(static_cast<size_t>(r * r)), b(a.size());
    if (rows > cols)
        transpose(u.data(), rows, cols, cols, x.data(), pool);
    else
        std::ranges::copy(u, x.begin());
    for (float& value : x) value *= scale;
    const auto multiply = [&](const PackedMatrix& w, const std::vector<float>& left, std::vector<float>& out) {
        matmul.matmul(w, {.x = left.data(), .rows = r, .stride = w.cols()}, {.y = out.data(), .stride = w.rows()},
                      pool);
    };
    for (int round = 0; round < 5; ++round) {
        multiply(pack_rows(x.data(), r, c, c, pool), x, a);
        multiply(pack_rows(a.data(), r, r, r, pool), a, b);  // A is exactly symmetric
        for (size_t i = 0; i < b.size(); ++i) b[i] = -4.7750f * a[i] + 2.0315f * b[i];
        multiply(pack_transposed(x.data(), r, c, c, pool), b, next);
        for (size_t i = 0; i < x.size(); ++i) x[i] = 3.4445f * x[i] + next[i];
    }
    if (rows > cols)
        transpose(x.data(), r, c, c, u.data(), pool);
    else
        std::ranges::copy(x, u.begin());
}

}  // namespace nibble
