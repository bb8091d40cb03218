#include "model/cpu/router.h"

#include "kernels/exp.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace nibble {
namespace {

void scores(MoeConfig::Router router, std::span<float> logits) {
    if (router == MoeConfig::Router::sigmoid) {
        for (float& x : logits) x = 1.0f / (1.0f + exp_f32(-x));
        return;
    }
    if (router == MoeConfig::Router::sqrt_softplus) {
        for (float& x : logits) x = std::sqrt(x > 20.0f ? x : std::log1p(exp_f32(x)));
        return;
    }
    const float most = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (float& x : logits) {
        x = exp_f32(x - most);
        sum += x;
    }
    const auto total = static_cast<float>(sum);
    for (float& x : logits) x = x / total;
}

// Chooses the `count` largest values among the `open` ones; the lower index wins a tie. Always chooses `count` values,
// even if some are NaN.
void take_largest(std::span<const float> values, std::vector<bool>& open, int count, std::span<int32_t> taken) {
    for (int k = 0; k < count; ++k) {
        int best = -1;
        for (int i = 0; i < static_cast<int>(values.size()); ++i)
            if (open[i] && (best < 0 || values[i] > values[best])) best = i;
        open[best] = false;
        taken[k] = best;
    }
}

float two_best(std::span<const float> values) {
    if (values.size() == 1) return values[0];
    float first = std::max(values[0], values[1]), second = std::min(values[0], values[1]);
    for (const float v : values.subspan(2)) {
        if (v > first)
            second = std::exchange(first, v);
        else
            second = std::max(second, v);
    }
    return first + second;
}

// Returns which experts belong to a kept group.
std::vector<bool> open_experts(const MoeConfig& config, std::span<const float> selection) {
    std::vector<bool> open(selection.size(), config.groups == 1);
    if (config.groups == 1) return open;
    const size_t size = selection.size() / config.groups;
    std::vector<float> group(config.groups);
    for (int g = 0; g < config.groups; ++g) group[g] = two_best(selection.subspan(g * size, size));
    std::vector<bool> groups(config.groups, true);
    std::vector<int32_t> kept(config.kept_groups);
    take_largest(group, groups, config.kept_groups, kept);
    for (const int32_t g : kept) std::fill_n(open.begin() + g * static_cast<int64_t>(size), size, true);
    return open;
}

// The best of the open experts, and its share of a softmax over those that are open and near it. `logits` are those of
// all experts.
float best_near(std::span<const float> logits, const std::vector<bool>& open, float jitter, int32_t& best) {
    best = -1;
    for (int32_t i = 0; i < static_cast<int32_t>(logits.size()); ++i)
        if (open[i] && (best < 0 || logits[i] > logits[best])) best = i;
    const float most = logits[best];
    double sum = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
        const bool far = (most - logits[i]) / std::max(std::abs(logits[i]), most) > 2 * jitter;
        if (open[i] && !far) sum += exp_f32(logits[i] - most);
    }
    return static_cast<float>(1.0 / sum);
}

// Leaves the logits as they are.
void route_sparse_mixer(const MoeConfig& config, std::span<const float> logits, std::span<int32_t> experts,
                        std::span<float> weights) {
    std::vector<bool> open(logits.size(), true);
    for (int k = 0; k < config.top_k; ++k) {
        weights[k] = best_near(logits, open, config.jitter, experts[k]) * config.routed_scaling;
        open[experts[k]] = false;
    }
    if (config.top_k == 2 && experts[0] > experts[1])
        std::swap(experts[0], experts[1]), std::swap(weights[0], weights[1]);
}

void weights_of_scores(const MoeConfig& config, std::span<const float> scores, std::span<const int32_t> experts,
                       std::span<float> weights) {
    float sum = 0.0f;
    for (int k = 0; k < config.top_k; ++k) {
        weights[k] = scores[experts[k]];
        sum += weights[k];
    }
    if (config.normalize)
        for (float& w : weights) w /= sum + config.smallest_sum;
    for (float& w : weights) w *= config.routed_scaling;
}

}  // namespace

Status check(const MoeConfig& c) {
    if (c.router == MoeConfig::Router::sparse_mixer && (c.top_k > 2 || c.groups > 1))
        return fail("a sparse mixer chooses up to two experts, without groups; here {} of {} groups", c.top_k,
                    c.groups);
    if (c.experts < 1 || c.groups < 1 || c.experts % c.groups != 0)
        return fail("{} experts do not divide into {} groups", c.experts, c.groups);
    if (c.kept_groups < 1 || c.kept_groups > c.groups)
        return fail("topk_group {} of {} groups", c.kept_groups, c.groups);
    if (c.top_k < 1 || c.top_k > c.experts / c.groups * c.kept_groups)
        return fail("{} experts per token, {} to choose from", c.top_k, c.experts / c.groups * c.kept_groups);
    return Ok{};
}

void route(const MoeConfig& config, std::span<float> logits, std::span<const float> bias, std::span<int32_t> experts,
           std::span<float> weights) {
    if (config.router == MoeConfig::Router::sparse_mixer) return route_sparse_mixer(config, logits, experts, weights);
    scores(config.router, logits);
    std::vector<float> selection(logits.begin(), logits.end());
    for (size_t e = 0; e < bias.size(); ++e) selection[e] += bias[e];
    std::vector<bool> open = open_experts(config, selection);
    take_largest(selection, open, config.top_k, experts);
    std::sort(experts.begin(), experts.end());
    weights_of_scores(config, logits, experts, weights);
}

void weigh(const MoeConfig& config, std::span<float> logits, std::span<const int32_t> experts,
           std::span<float> weights) {
    scores(config.router, logits);
    weights_of_scores(config, logits, experts, weights);
}

void route_backward(const MoeConfig& config, std::span<const float> p, std::span<const int32_t> experts,
                    std::span<const float> d_weights, std::span<float> d_logits) {
    std::fill(d_logits.begin(), d_logits.end(), 0.0f);
    // d_logits first holds dL/dp.
    double sum = 0, weighted = 0;
    for (size_t k = 0; k < experts.size(); ++k) {
        sum += p[experts[k]];
        weighted += double{d_weights[k]} * p[experts[k]];
    }
    sum += config.smallest_sum;
    for (size_t k = 0; k < experts.size(); ++k) {
        const double d = config.normalize ? (d_weights[k] - weighted / sum) / sum : d_weights[k];
        d_logits[experts[k]] = static_cast<float>(d * config.routed_scaling);
    }
    if (config.router == MoeConfig::Router::sigmoid) {
        for (size_t e = 0; e < p.size(); ++e) d_logits[e] *= p[e] * (1.0f - p[e]);
        return;
    }
    double mean = 0;
    for (size_t e = 0; e < p.size(); ++e) mean += double{d_logits[e]} * p[e];
    for (size_t e = 0; e < p.size(); ++e) d_logits[e] = static_cast<float>(p[e] * (d_logits[e] - mean));
}

}  // namespace nibble
