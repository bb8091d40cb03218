#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

namespace nibble {
namespace {

int32_t draw(const SamplingParams& params, std::vector<float> logits, int64_t position, uint64_t sequence = 0) {
    return Sampler(params, sequence, {}).sample(logits, position);
}

std::vector<float> random_logits(size_t n, uint32_t seed) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal(0, 3);
    std::vector<float> logits(n);
    for (float& v : logits) v = normal(rng);
    return logits;
}

// Returns the tokens that a setting can draw, by definition: sorted, most likely first, lower id first.
std::vector<int32_t> kept_by_definition(const SamplingParams& p, const std::vector<float>& logits) {
    std::vector<std::pair<double, int32_t>> tokens;
    const float largest = *std::ranges::max_element(logits);
    for (size_t i = 0; i < logits.size(); ++i)
        tokens.push_back({std::exp((double(logits[i]) - double(largest)) / double(p.temperature)), int32_t(i)});
    std::ranges::stable_sort(tokens, [](const auto& a, const auto& b) { return a.first > b.first; });
    std::erase_if(tokens, [&](const auto& t) { return t.first < double(p.min_p); });
    if (p.top_k > 0 && tokens.size() > size_t(p.top_k)) tokens.resize(size_t(p.top_k));
    double mass = 0, sum = 0;
    for (const auto& t : tokens) mass += t.first;
    std::vector<int32_t> kept;
    for (const auto& t : tokens) {
        if (sum >= double(p.top_p) * mass) break;
        sum += t.first;
        kept.push_back(t.second);
    }
    std::ranges::sort(kept);
    return kept;
}

TEST(Sampler, GreedyChoosesTheLargestLogitAndTheLowerIdOnTies) {
    const SamplingParams greedy{.temperature = 0};
    EXPECT_EQ(draw(greedy, {1, 3, 2}, 0), 1);
    EXPECT_EQ(draw(greedy, {-5, -1, -1}, 0), 1);
    EXPECT_EQ(draw(greedy, {2, 2, 2, 2}, 0), 0);
}

TEST(Sampler, TheDrawDependsOnlyOnSeedSequenceAndPosition) {
    const auto logits = random_logits(1000, 1);
    const SamplingParams params{.seed = 7};
    std::map<int32_t, int> seen;
    for (int64_t position = 0; position < 50; ++position) {
        const int32_t first = draw(params, logits, position);
        EXPECT_EQ(first, draw(params, logits, position));
        ++seen[first];
    }
    EXPECT_GT(seen.size(), 10u);
    int differ = 0;
    for (int64_t position = 0; position < 50; ++position) {
        differ += draw(params, logits, position) != draw(params, logits, position, 1);
        differ += draw(params, logits, position) != draw({.seed = 8}, logits, position);
    }
    EXPECT_GT(differ, 50);
}

TEST(Sampler, FrequenciesFollowTheSoftmax) {
    const std::vector<float> logits{0, 1, 2, -1, 0.5f};
    for (const float temperature : {0.5f, 1.0f, 2.0f}) {
        std::vector<double> p;
        double z = 0;
        for (const float v : logits) z += p.emplace_back(std::exp(double(v) / double(temperature)));
        std::vector<int> seen(logits.size());
        constexpr int draws = 20000;
        for (int i = 0; i < draws; ++i) ++seen[size_t(draw({.temperature = temperature, .seed = 3}, logits, i))];
        for (size_t i = 0; i < p.size(); ++i) {
            const double want = p[i] / z, error = std::sqrt(want * (1 - want) / draws);
            EXPECT_NEAR(seen[i] / double(draws), want, 4 * error) << temperature << " " << i;
        }
    }
}

TEST(Sampler, FiltersFollowTheirDefinitions) {
    const auto logits = random_logits(200, 5);
    for (const SamplingParams params :
         {SamplingParams{.top_k = 1}, SamplingParams{.top_k = 7}, SamplingParams{.top_k = 1000, .top_p = 0.5f},
          SamplingParams{.top_p = 0.3f}, SamplingParams{.top_p = 0.9f}, SamplingParams{.min_p = 0.2f},
          SamplingParams{.temperature = 0.7f, .top_k = 20, .top_p = 0.8f, .min_p = 0.02f},
          SamplingParams{.temperature = 3.0f, .top_p = 0.95f}}) {
        std::map<int32_t, int> seen;
        for (int i = 0; i < 30000; ++i) ++seen[draw(params, logits, i)];
        std::vector<int32_t> ids;
        for (const auto& [id, n] : seen) ids.push_back(id);
        const auto kept = kept_by_definition(params, logits);
        EXPECT_TRUE(std::ranges::includes(kept, ids)) << params.top_k << " " << params.top_p << " " << params.min_p;
        if (kept.size() <= 20) {
            EXPECT_EQ(ids, kept) << params.top_k << " " << params.top_p << " " << params.min_p;
        }
    }
}

TEST(Sampler, FiltersBreakTiesTowardsTheLowerId) {
    const std::vector<float> logits(50, 1.0f);
    for (int i = 0; i < 200; ++i) {
        EXPECT_LT(draw({.top_k = 3, .seed = 2}, logits, i), 3);
        EXPECT_LT(draw({.top_p = 0.09f, .seed = 2}, logits, i), 5);
    }
}

TEST(Sampler, TokenRequestsHaveTheParametersOfTheSampler) {
    const std::vector<int32_t> prompt{5, 2, 5};
    Sampler sampler({.repetition_penalty = 1.5f, .seed = 9}, 4, prompt);
    sampler.accept(2);
    sampler.accept(8);
    sampler.accept(2);
    const TokenRequest r = sampler.request(7);
    EXPECT_EQ(r.sequence, 4u);
    EXPECT_EQ(r.position, 7);
    EXPECT_EQ(r.params.seed, 9u);
    std::map<int32_t, int32_t> seen;
    for (const SeenToken& s : r.seen) EXPECT_TRUE(seen.emplace(s.id, s.answer).second);
    EXPECT_EQ(seen, (std::map<int32_t, int32_t>{{2, 2}, {5, 0}, {8, 1}}));
    EXPECT_TRUE(Sampler({}, 0, prompt).request(0).seen.empty());
}

// Sums of weights are exact, so they do not depend on the order; the weight of the most likely token is 2^44.
TEST(Sampler, WeightsAreIntegersRelativeToTheMostLikelyToken) {
    EXPECT_EQ(sampling_weight(3.25f, 3.25f), uint64_t{1} << 44);
    EXPECT_NEAR(double(sampling_weight(0.0f, 1.0f)), std::exp(-1.0) * 0x1p44, 0x1p21);
    EXPECT_EQ(sampling_weight(-40.0f, 0.0f), 0u);
    EXPECT_EQ(sampling_weight(-INFINITY, 0.0f), 0u);
    EXPECT_EQ(sampling_weight(NAN, 0.0f), 0u);
}

TEST(Sampler, PenaltiesChangeTheLogitsOfSeenTokens) {
    const std::vector<int32_t> prompt{0, 2};
    // Repetition penalty: counts prompt and answer; positive logits are divided, negative ones multiplied.
    Sampler repetition({.temperature = 0, .repetition_penalty = 2}, 0, prompt);
    std::vector<float> logits{4, 3, -1, -1.5f};
    EXPECT_EQ(repetition.sample(logits, 0), 1);
    EXPECT_EQ(logits, (std::vector<float>{2, 3, -2, -1.5f}));
    repetition.accept(1);
    logits = {4, 3, -1, -1.5f};
    EXPECT_EQ(repetition.sample(logits, 1), 0);
    EXPECT_EQ(logits, (std::vector<float>{2, 1.5f, -2, -1.5f}));
    // Presence and frequency penalties count only the answer.
    Sampler counts({.temperature = 0, .presence_penalty = 1, .frequency_penalty = 0.5f}, 0, prompt);
    counts.accept(1);
    counts.accept(1);
    counts.accept(3);
    logits = {4, 3, -1, -1.5f};
    EXPECT_EQ(counts.sample(logits, 3), 0);
    EXPECT_EQ(logits, (std::vector<float>{4, 1, -1, -3}));
}

TEST(Sampler, ValuesOutOfRangeAreNamed) {
    EXPECT_TRUE(check(SamplingParams{}).ok());
    EXPECT_NE(check(SamplingParams{.temperature = -1}).error().message().find("temperature"), std::string::npos);
    EXPECT_NE(check(SamplingParams{.temperature = NAN}).error().message().find("temperature"), std::string::npos);
    EXPECT_NE(check(SamplingParams{.top_k = -1}).error().message().find("top-k"), std::string::npos);
    EXPECT_NE(check(SamplingParams{.top_p = 0}).error().message().find("top-p"), std::string::npos);
    EXPECT_NE(check(SamplingParams{.min_p = 2}).error().message().find("min-p"), std::string::npos);
    EXPECT_NE(check(SamplingParams{.repetition_penalty = 0}).error().message().find("repetition"), std::string::npos);
}

}  // namespace
}  // namespace nibble
