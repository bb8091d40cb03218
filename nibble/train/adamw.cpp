#include "train/adamw.h"

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

constexpr int64_t adam_run = 1 << 14;  // elements of one task

}  // namespace

float clip_factor(double norm, double limit) {
    if (!(limit > 0) || norm <= limit) return 1.0f;
    return static_cast<float>(limit / norm);
}

AdamW::AdamW(const Parameters& parameters, const TrainOptimizer& options) : options_(options) {
    for (size_t id = 0; id < parameters.count(); ++id) {
        m_.emplace_back(parameters.master(id).size());
        v_.emplace_back(parameters.master(id).size());
    }
}

void AdamW::update(Parameters& parameters, const GradientTree& gradients, double learning_rate, float clip,
                   ThreadPool& pool) {
    ++steps_;
    const auto t = static_cast<double>(steps_);
    const auto beta2 = static_cast<float>(options_.beta2), rest1 = static_cast<float>(1 - options_.beta1),
               rest2 = static_cast<float>(1 - options_.beta2), epsilon = static_cast<float>(options_.epsilon);
    const auto rate = static_cast<float>(learning_rate / (1 - std::pow(options_.beta1, t)));
    const auto root = static_cast<float>(std::sqrt(1 - std::pow(options_.beta2, t)));
    for (size_t id = 0; id < parameters.count(); ++id) {
        const std::span<const float> gradient = gradients.gradient(id);
        if (gradient.empty()) continue;
        const std::span<float> w = parameters.master(id), m = m_[id], v = v_[id];
        const auto keep = static_cast<float>(1 - learning_rate * options_.weight_decay);
        const bool decay = parameters.matrix(id) && options_.weight_decay != 0;
        const int64_t n = std::ssize(w);
        pool.parallel_for((n + adam_run - 1) / adam_run, [&](int64_t run) {
            const auto last = static_cast<size_t>(std::min(n, (run + 1) * adam_run));
            for (auto j = static_cast<size_t>(run * adam_run); j < last; ++j) {
                const float g = clip * gradient[j];
                float x = w[j];
                if (decay) x = x * keep;
                m[j] = m[j] + rest1 * (g - m[j]);
                v[j] = beta2 * v[j] + rest2 * (g * g);
                w[j] = x - rate * (m[j] / (std::sqrt(v[j]) / root + epsilon));
            }
        });
    }
}

}  // namespace nibble
