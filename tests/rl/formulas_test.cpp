// Compares losses, gradients, metrics and advantages with tests/oracles/rl_formulas.py (numpy). The gradient is checked
// by central differences only, because the tests' environment does not have PyTorch, whose automatic differentiation
// NeMo RL uses.
#include "base/json.h"
#include "rl/advantage.h"
#include "rl/policy_loss.h"
#include "rl/rl_log.h"
#include "support/files.h"

#include <gtest/gtest.h>

#include <cmath>

namespace nibble {
namespace {

const Json& formulas() {
    static const Json json = [] {
        auto read = read_json_file(test::test_data("rl") / "formulas.json");
        EXPECT_TRUE(read.ok()) << read.error().message();
        return read.ok() ? *std::move(read) : Json::object();
    }();
    return json;
}

std::optional<double> optional_number(const Json& json) {
    return json.is_null() ? std::nullopt : std::optional(json.get<double>());
}

template <class Enum>
Enum named(std::span<const std::string_view> names, const Json& name) {
    const auto found = std::ranges::find(names, name.get<std::string>());
    EXPECT_NE(found, names.end()) << name;
    return static_cast<Enum>(found - names.begin());
}

PolicyLossOptions loss_options(const Json& o) {
    return {.ratio_clip_min = o["ratio_clip_min"],
            .ratio_clip_max = o["ratio_clip_max"],
            .ratio_clip_c = optional_number(o["ratio_clip_c"]),
            .kl_penalty = o["kl_penalty"],
            .kl_type = named<KlEstimator>(kl_estimator_names, o["kl_type"]),
            .kl_in_reward = o["kl_in_reward"],
            .token_level_loss = o["token_level_loss"],
            .force_on_policy_ratio = o["force_on_policy_ratio"],
            .disable_ppo_ratio = o["disable_ppo_ratio"],
            .sequence_level_importance_ratios = o["sequence_level_importance_ratios"],
            .use_cispo = o["use_cispo"],
            .use_on_policy_kl_approximation = o["use_on_policy_kl_approximation"],
            .importance_sampling_correction = o["importance_sampling_correction"],
            .truncation = named<ImportanceTruncation>(importance_truncation_names, o["truncation"]),
            .importance_high = optional_number(o["importance_high"]),
            .importance_low = optional_number(o["importance_low"])};
}

// Computes loss and gradient of a case's answers, and compares the gradients.
BatchCounts twin_loss(const Json& test, PolicyMetrics& metrics) {
    const PolicyLossOptions options = loss_options(test["options"]);
    EXPECT_TRUE(check(options).ok());
    BatchCounts counts;
    for (const Json& a : test["answers"]) {
        int64_t unmasked = 0;
        for (const Json& m : a["mask"]) unmasked += m.get<int>();
        if (a["weight"].get<double>() == 0 || unmasked == 0) continue;
        counts.tokens += unmasked, ++counts.answers;
    }
    for (const Json& a : test["answers"]) {
        const auto c = a["c"].get<std::vector<float>>(), p = a["p"].get<std::vector<float>>();
        const auto f = a["f"].get<std::vector<float>>(), g = a["g"].get<std::vector<float>>();
        const auto mask = a["mask"].get<std::vector<uint8_t>>();
        const auto want = a["gradient"].get<std::vector<double>>();
        const bool each = a["advantage"].is_array();
        const auto advantages = each ? a["advantage"].get<std::vector<double>>() : std::vector<double>();
        std::vector<double> gradient(c.size(), 99);
        const Status done = policy_loss({.generated = g,
                                         .previous = p,
                                         .current = c,
                                         .reference = f,
                                         .mask = mask,
                                         .advantage = each ? 0.0 : a["advantage"].get<double>(),
                                         .advantages = advantages,
                                         .weight = a["weight"]},
                                        options, counts, gradient, metrics);
        EXPECT_TRUE(done.ok()) << done.error().message();
        for (size_t t = 0; t < want.size(); ++t) EXPECT_NEAR(gradient[t], want[t], 2e-8) << "token " << t;
    }
    return counts;
}

TEST(PolicyLoss, EqualsTheTwinInValueAndGradient) {
    ASSERT_EQ(formulas()["policy_loss"].size(), 20u);
    for (const Json& test : formulas()["policy_loss"]) {
        SCOPED_TRACE(test["options"].dump());
        PolicyMetrics metrics;
        const BatchCounts counts = twin_loss(test, metrics);
        EXPECT_NEAR(metrics.loss, test["loss"].get<double>(), 1e-12);
        EXPECT_EQ(metrics.tokens, counts.tokens);
    }
}

// Compares metrics as they are logged: sums, counts and names.
TEST(PolicyLoss, MetricsEqualTheTwin) {
    int bounded = 0;
    for (const Json& test : formulas()["policy_loss"]) {
        SCOPED_TRACE(test["options"].dump());
        RlStep step;
        int64_t generated = 0, differ = 0;
        twin_loss(test, step.metrics);
        const bool forced = test["options"]["force_on_policy_ratio"];
        for (const Json& a : test["answers"])
            for (size_t t = 0; t < a["mask"].size(); ++t)
                if (a["mask"][t] == 1) ++generated, differ += a["g"][t] != a[forced ? "c" : "p"][t];
        EXPECT_EQ(step.metrics.compared_tokens, generated);  // includes answers with weight 0
        EXPECT_EQ(step.metrics.mismatch_tokens, differ);
        EXPECT_GT(generated, step.metrics.tokens);
        const Json line = to_json(step, std::nullopt, 1.0);
        EXPECT_GE(test["metrics"].size(), 15u);
        for (const auto& [name, want] : test["metrics"].items()) {
            ASSERT_TRUE(line.contains(name)) << name;
            const double value = want.get<double>();
            EXPECT_NEAR(line[name].get<double>(), value, 1e-9 * std::max(1.0, std::fabs(value))) << name;
        }
        EXPECT_EQ(line.contains("is_oob_ratio"), test["metrics"].contains("is_oob_ratio"));
        bounded += line.contains("is_oob_ratio") && line["is_oob_ratio"] > 0 && line["is_oob_ratio"] < 1;
    }
    EXPECT_GE(bounded, 3);
}

// If nothing was compared, the log has no count of 0.
TEST(PolicyLoss, MetricsOfNothingHaveNoValue) {
    const std::vector<float> logprobs{-0.5f, -2.25f}, other{-0.5f, -2.5f};
    const std::vector<uint8_t> mask{1, 1};
    std::vector<double> gradient(2, 7.0);
    RlStep step;
    const Json nothing = to_json(step, std::nullopt, 1.0);
    EXPECT_FALSE(nothing.contains("mismatch_tokens") || nothing.contains("token_mult_prob_error"));
    EXPECT_EQ(nothing["compared_tokens"], 0);
    EXPECT_NE(step_text(step, std::nullopt, 1.0).find("no token compared, no token in the loss"), std::string::npos);
    ASSERT_TRUE(policy_loss({.generated = other, .previous = logprobs, .current = logprobs, .mask = mask, .weight = 0},
                            {.kl_penalty = 0}, {0, 0}, gradient, step.metrics)
                    .ok());
    EXPECT_EQ(gradient, std::vector<double>(2));
    const Json line = to_json(step, std::nullopt, 1.0);
    EXPECT_EQ(line["mismatch_tokens"], 1);
    EXPECT_EQ(line["compared_tokens"], 2);
    EXPECT_EQ(line["max_abs_diff"], 0.25);
    EXPECT_FALSE(line.contains("token_mult_prob_error"));
    EXPECT_NE(step_text(step, std::nullopt, 1.0).find("mismatch_tokens 1 of 2, no token in the loss"),
              std::string::npos);
}

TEST(PolicyLoss, ExactRolloutsHaveNoMismatchAndRatioOne) {
    const std::vector<float> logprobs{-0.5f, -2.25f, -0.001f};
    const std::vector<uint8_t> mask{1, 1, 0};
    std::vector<double> gradient(3);
    PolicyMetrics m;
    ASSERT_TRUE(
        policy_loss({.generated = logprobs, .previous = logprobs, .current = logprobs, .mask = mask, .advantage = 1},
                    {.kl_penalty = 0}, {2, 1}, gradient, m)
            .ok());
    EXPECT_EQ(m.mismatch_tokens, 0);
    EXPECT_EQ(m.max_abs_diff, 0);
    EXPECT_EQ(m.token_mult_prob_error, 2.0);
    EXPECT_EQ(m.gen_kl_error, 0);
    EXPECT_EQ(m.js_divergence_error, 0);
    EXPECT_EQ(m.probs_ratio_min, 1.0);
    EXPECT_EQ(m.probs_ratio_max, 1.0);
    std::vector<float> other = logprobs;
    other[1] = std::nextafter(other[1], 0.0f);  // the lowest bit
    PolicyMetrics off;
    ASSERT_TRUE(
        policy_loss({.generated = other, .previous = logprobs, .current = logprobs, .mask = mask, .advantage = 1},
                    {.kl_penalty = 0}, {2, 1}, gradient, off)
            .ok());
    EXPECT_EQ(off.mismatch_tokens, 1);
    EXPECT_GT(off.max_abs_diff, 0);
}

TEST(PolicyLoss, MeaninglessOptionsAndBadTokensAreErrors) {
    EXPECT_FALSE(check({.ratio_clip_c = 0.9}).ok());
    EXPECT_FALSE(check({.sequence_level_importance_ratios = true}).ok());
    EXPECT_FALSE(check({.importance_sampling_correction = true, .truncation = ImportanceTruncation::tis}).ok());
    EXPECT_FALSE(check({.disable_ppo_ratio = true, .use_cispo = true}).ok());
    const std::vector<float> fine{-1.0f}, bad{-INFINITY};
    const std::vector<uint8_t> mask{1};
    std::vector<double> gradient(1);
    PolicyMetrics m;
    const Status done = policy_loss({.generated = bad, .previous = fine, .current = fine, .mask = mask},
                                    {.kl_penalty = 0}, {1, 1}, gradient, m);
    ASSERT_FALSE(done.ok());
    EXPECT_NE(done.error().message().find("token 0"), std::string::npos);
    // Tokens excluded by the trainer's filters are not part of the loss.
    const std::vector<float> two{-1.0f, -2.0f}, second{-1.0f, -INFINITY};
    const std::vector<uint8_t> both{1, 1};
    std::vector<double> slopes(2);
    PolicyMetrics left;
    for (const auto& [p, c] : {std::pair(two, second), std::pair(second, two)})
        ASSERT_TRUE(policy_loss({.generated = two, .previous = p, .current = c, .mask = both, .advantage = 1},
                                {.kl_penalty = 0}, {2, 1}, slopes, left)
                        .ok());
    EXPECT_EQ(left.tokens, 2);
    EXPECT_EQ(left.filtered_tokens, 2);
    EXPECT_EQ(left.mismatch_tokens, 1);  // the token whose p is -inf
    EXPECT_NEAR(left.loss, -1, 1e-7);
    EXPECT_EQ(slopes[1], 0);
    EXPECT_FALSE(
        policy_loss({.generated = fine, .previous = fine, .current = fine, .mask = mask}, {}, {1, 1}, gradient, m)
            .ok());  // beta > 0 without a reference
}

TEST(Advantages, EqualTheTwin) {
    ASSERT_EQ(formulas()["advantages"].size(), 5u);
    for (const Json& test : formulas()["advantages"]) {
        SCOPED_TRACE(test["estimator"].dump());
        const auto a =
            advantages(test["rewards"].get<std::vector<double>>(), test["groups"].get<std::vector<int64_t>>(),
                       test["tokens"].get<std::vector<int64_t>>(),
                       {.estimator = named<AdvantageEstimator>(advantage_estimator_names, test["estimator"]),
                        .leave_one_out = test["leave_one_out"],
                        .normalize_rewards = test["normalize_rewards"]});
        ASSERT_TRUE(a.ok()) << a.error().message();
        const auto want = test["advantages"].get<std::vector<double>>();
        for (size_t i = 0; i < want.size(); ++i)
            EXPECT_NEAR((*a)[i], want[i], 1e-9 * std::max(1.0, std::fabs(want[i]))) << i;
    }
}

// Tests NeMo RL's use_kl_in_reward.
TEST(Advantages, KlEstimatesInTheRewardEqualTheTwin) {
    ASSERT_EQ(formulas()["token_advantages"].size(), 3u);
    const AdvantageOptions options{.estimator = AdvantageEstimator::reinforce_plus_plus};
    for (const Json& test : formulas()["token_advantages"]) {
        SCOPED_TRACE(test["kl_type"].dump());
        const auto rewards = test["rewards"].get<std::vector<double>>();
        const auto groups = test["groups"].get<std::vector<int64_t>>();
        const auto kind = named<KlEstimator>(kl_estimator_names, test["kl_type"]);
        std::vector<std::vector<double>> penalties;
        for (size_t i = 0; i < rewards.size(); ++i) {
            penalties.emplace_back();
            for (size_t t = 0; t < test["p"][i].size(); ++t)
                penalties[i].push_back(test["kl_penalty"].get<double>() *
                                       kl_estimate(test["p"][i][t], test["f"][i][t], kind));
        }
        const auto a = token_advantages(rewards, groups, penalties, options);
        ASSERT_TRUE(a.ok()) << a.error().message();
        for (size_t i = 0; i < rewards.size(); ++i) {
            const auto want = test["advantages"][i].get<std::vector<double>>();
            ASSERT_EQ((*a)[i].size(), want.size());
            for (size_t t = 0; t < want.size(); ++t) EXPECT_NEAR((*a)[i][t], want[t], 1e-9) << i << ' ' << t;
        }
        // Without a penalty each token has its answer's advantage.
        std::vector<int64_t> lengths;
        for (auto& p : penalties) std::ranges::fill(p, 0.0), lengths.push_back(std::ssize(p));
        const auto none = token_advantages(rewards, groups, penalties, options);
        const auto whole = advantages(rewards, groups, lengths, options);
        ASSERT_TRUE(none.ok() && whole.ok());
        for (size_t i = 0; i < rewards.size(); ++i)
            for (const double x : (*none)[i]) EXPECT_NEAR(x, (*whole)[i], 1e-9);
        EXPECT_FALSE(token_advantages(rewards, groups, penalties, {}).ok());  // another estimator
    }
}

TEST(Advantages, TheWorkedExampleOfFourAnswers) {
    const std::vector<double> rewards{1, 0, 0, 0};
    const std::vector<int64_t> groups{5, 5, 5, 5}, tokens{1, 1, 1, 1};
    const auto a = advantages(rewards, groups, tokens, {});
    ASSERT_TRUE(a.ok());
    EXPECT_EQ((*a)[0], 1.0);  // the others have no deviation, so it is not normalized
    EXPECT_NEAR((*a)[1], -1.0 / 3 / (1 / std::sqrt(3.0) + 1e-6), 1e-12);
    EXPECT_FALSE(advantages(std::vector<double>{NAN}, std::vector<int64_t>{0}, std::vector<int64_t>{1}, {}).ok());
}

// Fifteen equal rewards have no deviation, whatever the rounding of their sums.
TEST(Advantages, EqualRewardsOfAGroupHaveNoDeviation) {
    for (const double equal : {0.1, 0.3, 1.0 / 3, 0.7, 1e-3, 1e3 / 7})
        for (size_t others = 2; others < 33; ++others) {
            std::vector<double> rewards(others + 1, equal);
            rewards[others / 2] = 1;
            const std::vector<int64_t> groups(rewards.size(), 0), tokens(rewards.size(), 1);
            const auto a = advantages(rewards, groups, tokens, {});
            ASSERT_TRUE(a.ok());
            EXPECT_NEAR((*a)[others / 2], 1 - equal, 1e-12 * std::abs(1 - equal)) << equal << ", " << others;
        }
}

}  // namespace
}  // namespace nibble
