// Compares the choice of experts with a direct implementation of its definition, including ties and groups, and its
// gradient with differences.
#include "model/cpu/router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

namespace nibble {
namespace {

struct Choice {
    std::vector<int32_t> experts;
    std::vector<double> weights;
};

// Computes the choice in FP64 by sorting.
Choice expected(const MoeConfig& c, const std::vector<float>& logits, const std::vector<float>& bias) {
    std::vector<double> p(logits.begin(), logits.end());
    double sum = 0;
    for (double& x : p) sum += std::exp(x);
    for (double& x : p) x = c.router == MoeConfig::Router::softmax ? std::exp(x) / sum : 1 / (1 + std::exp(-x));
    std::vector<double> selection = p;
    for (size_t e = 0; e < bias.size(); ++e) selection[e] += bias[e];
    const int size = c.experts / c.groups;
    std::vector<int> groups(c.groups);
    std::iota(groups.begin(), groups.end(), 0);
    std::vector<double> score(c.groups);
    for (int g = 0; g < c.groups; ++g) {
        std::vector<double> s(selection.begin() + g * size, selection.begin() + (g + 1) * size);
        std::sort(s.rbegin(), s.rend());
        score[g] = s[0] + (s.size() > 1 ? s[1] : 0.0);
    }
    std::stable_sort(groups.begin(), groups.end(), [&](int a, int b) { return score[a] > score[b]; });
    std::vector<int32_t> open;
    for (int i = 0; i < c.kept_groups; ++i)
        for (int e = groups[i] * size; e < (groups[i] + 1) * size; ++e) open.push_back(e);
    std::sort(open.begin(), open.end());
    std::stable_sort(open.begin(), open.end(), [&](int a, int b) { return selection[a] > selection[b]; });
    Choice choice{{open.begin(), open.begin() + c.top_k}, {}};
    std::sort(choice.experts.begin(), choice.experts.end());
    double total = 0;
    for (const int32_t e : choice.experts) total += p[e];
    for (const int32_t e : choice.experts)
        choice.weights.push_back(p[e] / (c.normalize ? total : 1.0) * c.routed_scaling);
    return choice;
}

MoeConfig config(MoeConfig::Router router, int groups, bool normalize) {
    MoeConfig c;
    c.experts = 24, c.top_k = 4, c.router = router, c.normalize = normalize;
    c.groups = groups, c.kept_groups = (groups + 1) / 2;
    c.routed_scaling = 2.5f;
    return c;
}

std::vector<MoeConfig> configs() {
    std::vector<MoeConfig> all;
    for (const auto router : {MoeConfig::Router::softmax, MoeConfig::Router::sigmoid})
        for (const int groups : {1, 3, 6})
            for (const bool normalize : {true, false}) all.push_back(config(router, groups, normalize));
    return all;
}

TEST(Router, ChoosesByTheDefinition) {
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    for (const MoeConfig& c : configs()) {
        ASSERT_TRUE(check(c).ok());
        for (int round = 0; round < 200; ++round) {
            std::vector<float> logits(c.experts), bias(round % 2 ? c.experts : 0), weights(c.top_k);
            std::vector<int32_t> experts(c.top_k);
            for (float& x : logits) x = normal(rng);
            for (float& x : bias) x = 0.3f * normal(rng);
            const Choice want = expected(c, logits, bias);
            route(c, logits, bias, experts, weights);
            EXPECT_EQ(experts, want.experts);
            for (int k = 0; k < c.top_k; ++k) EXPECT_NEAR(weights[k], want.weights[k], 1e-5);
        }
    }
}

TEST(Router, TiesGoToTheLowerIndex) {
    for (const MoeConfig& c : configs()) {
        std::vector<float> logits(c.experts, 0.25f), weights(c.top_k);
        std::vector<int32_t> experts(c.top_k);
        route(c, logits, {}, experts, weights);
        EXPECT_EQ(experts, (std::vector<int32_t>{0, 1, 2, 3}));
    }
}

// With NaN scores the chosen experts still exist; the next block reports the NaNs.
TEST(Router, NanLogitsChooseValidExperts) {
    for (const MoeConfig& c : configs()) {
        std::vector<float> logits(c.experts, std::numeric_limits<float>::quiet_NaN()), weights(c.top_k);
        std::vector<int32_t> experts(c.top_k);
        route(c, logits, {}, experts, weights);
        for (int k = 0; k < c.top_k; ++k) {
            EXPECT_GE(experts[k], k ? experts[k - 1] + 1 : 0);
            EXPECT_LT(experts[k], c.experts);
        }
    }
}

TEST(Router, InvalidCountsAreErrors) {
    MoeConfig c = config(MoeConfig::Router::sigmoid, 6, true);
    c.top_k = 13;  // 3 groups of 4 are kept
    EXPECT_FALSE(check(c).ok());
    c.top_k = 12;
    EXPECT_TRUE(check(c).ok());
    c.groups = 7;
    EXPECT_FALSE(check(c).ok());
    c.groups = 6, c.kept_groups = 7;
    EXPECT_FALSE(check(c).ok());
}

TEST(Router, GradientEqualsThatOfTheRoutingWeights) {
    std::mt19937 rng(2);
    std::normal_distribution<float> normal;
    for (const MoeConfig& c : configs()) {
        std::vector<float> logits(c.experts), d_weights(c.top_k), d_logits(c.experts), weights(c.top_k);
        std::vector<int32_t> experts(c.top_k);
        for (float& x : logits) x = normal(rng);
        for (float& x : d_weights) x = normal(rng);
        std::vector<float> p = logits;
        route(c, p, {}, experts, weights);
        route_backward(c, p, experts, d_weights, d_logits);
        const auto loss = [&](const std::vector<float>& at) {
            const Choice choice = expected(c, at, {});
            double sum = 0;
            for (int k = 0; k < c.top_k; ++k) sum += choice.weights[k] * d_weights[k];
            return choice.experts == experts ? sum : std::nan("");
        };
        for (int e = 0; e < c.experts; ++e) {
            const float h = 1e-3f;
            std::vector<float> up = logits, down = logits;
            up[e] += h, down[e] -= h;
            const double difference = (loss(up) - loss(down)) / (double{up[e]} - double{down[e]});
            if (std::isnan(difference)) continue;  // the choice itself changes at this point
            EXPECT_NEAR(d_logits[e], difference, 2e-5) << e;
        }
    }
}

// transformers' sparsemixer with a jitter of 0.1: logits further than 0.2 of the larger magnitude from the best one do
// not count.
TEST(Router, SparseMixerTakesSharesNearTheBest) {
    const MoeConfig c{.experts = 4, .top_k = 2, .router = MoeConfig::Router::sparse_mixer, .jitter = 0.1f};
    std::vector<float> logits{2.0f, 1.9f, 0.5f, 1.7f}, weights(2);
    std::vector<int32_t> experts(2);
    route(c, logits, {}, experts, weights);
    EXPECT_EQ(experts, (std::vector<int32_t>{0, 1}));
    const double a = 1 + std::exp(-0.1) + std::exp(-0.3);  // (2 - 1.7) / 2 <= 0.2
    const double b = 1 + std::exp(-0.2);                   // (1.9 - 1.7) / 1.9 <= 0.2, 0.5 is far
    EXPECT_NEAR(weights[0], 1 / a, 1e-6);
    EXPECT_NEAR(weights[1], 1 / b, 1e-6);
    EXPECT_FALSE(check(MoeConfig{.experts = 4, .top_k = 3, .router = MoeConfig::Router::sparse_mixer}).ok());
}

}  // namespace
}  // namespace nibble
