#include "rl/advantage.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

namespace nibble {
namespace {

using Groups = std::map<int64_t, std::vector<size_t>>;  // indices of a group's answers

Groups answers_of(std::span<const int64_t> groups) {
    Groups all;
    for (size_t i = 0; i < groups.size(); ++i) all[groups[i]].push_back(i);
    return all;
}

struct Spread {
    double mean = 0, deviation = 0;
};

// Returns mean and standard deviation of the answers' rewards, without the answer `without` if given. The deviation has
// Bessel's correction. It is 0 for fewer than two answers, and if it is only the rounding error of equal rewards
// (fifteen rewards of 0.1 leave 1e-9): a division by it would magnify that error.
Spread spread(std::span<const double> rewards, std::span<const size_t> answers, std::optional<size_t> without) {
    double n = 0, sum = 0, largest = 0, squares = 0;
    const auto each = [&](const auto& add) {
        for (const size_t i : answers)
            if (i != without) add(rewards[i]);
    };
    each([&](double r) { n += 1, sum += r, largest = std::max(largest, std::abs(r)); });
    Spread s{.mean = sum / n};
    if (n < 2) return s;
    each([&](double r) { squares += (r - s.mean) * (r - s.mean); });
    s.deviation = std::sqrt(squares / (n - 1));
    if (s.deviation <= 1e-9 * largest) s.deviation = 0;
    return s;
}

double group_advantage(std::span<const double> rewards, std::span<const size_t> group, size_t answer,
                       const AdvantageOptions& o) {
    if (group.size() <= 1) return 0;
    const bool without =
        o.estimator == AdvantageEstimator::rloo || (o.estimator == AdvantageEstimator::grpo && o.leave_one_out);
    const Spread s = spread(rewards, group, without ? std::optional(answer) : std::nullopt);
    const double advantage = rewards[answer] - s.mean;
    if (o.estimator != AdvantageEstimator::grpo || !o.normalize_rewards) return advantage;
    return s.deviation > 0 ? advantage / (s.deviation + 1e-6) : advantage;
}

// Replaces A by (A - mean) / sqrt(max(variance, 1e-8)) over all generated tokens. Each token has its answer's
// advantage.
void whiten(std::span<double> a, std::span<const int64_t> tokens) {
    double count = 0, sum = 0;
    for (size_t i = 0; i < a.size(); ++i)
        count += static_cast<double>(tokens[i]), sum += a[i] * static_cast<double>(tokens[i]);
    if (count == 0) return;
    const double mean = sum / count;
    double variance = 0;
    for (size_t i = 0; i < a.size(); ++i)
        variance += (a[i] - mean) * (a[i] - mean) * static_cast<double>(tokens[i]) / count;
    for (double& x : a) x = (x - mean) / std::sqrt(std::max(variance, 1e-8));
}

void clip(std::span<double> a, const AdvantageOptions& o) {
    for (double& x : a) {
        if (o.clip_low) x = std::max(x, *o.clip_low);
        if (o.clip_high) x = std::min(x, *o.clip_high);
    }
}

Status check_rewards(std::span<const double> rewards, size_t groups, size_t lengths) {
    if (groups != rewards.size() || lengths != rewards.size())
        return fail("advantages: {} rewards need as many groups and lengths, not {} and {}", rewards.size(), groups,
                    lengths);
    for (size_t i = 0; i < rewards.size(); ++i)
        if (!std::isfinite(rewards[i])) return fail("advantages: the reward of answer {} is {}", i, rewards[i]);
    return Ok{};
}

}  // namespace

Status check(const AdvantageOptions& o) {
    if (o.clip_low && o.clip_high && *o.clip_low > *o.clip_high)
        return fail("advantage_clip_low {} is above advantage_clip_high {}", *o.clip_low, *o.clip_high);
    return Ok{};
}

Result<std::vector<double>> advantages(std::span<const double> rewards, std::span<const int64_t> groups,
                                       std::span<const int64_t> tokens, const AdvantageOptions& options) {
    NIBBLE_CHECK(check_rewards(rewards, groups.size(), tokens.size()));
    std::vector<double> a(rewards.begin(), rewards.end());
    if (options.estimator != AdvantageEstimator::reward) {
        const Groups all = answers_of(groups);
        for (size_t i = 0; i < a.size(); ++i) a[i] = group_advantage(rewards, all.at(groups[i]), i, options);
    }
    if (options.estimator == AdvantageEstimator::reinforce_plus_plus) whiten(a, tokens);
    clip(a, options);
    return a;
}

Result<std::vector<std::vector<double>>> token_advantages(std::span<const double> rewards,
                                                          std::span<const int64_t> groups,
                                                          std::span<const std::vector<double>> penalties,
                                                          const AdvantageOptions& options) {
    NIBBLE_CHECK(check_rewards(rewards, groups.size(), penalties.size()));
    if (options.estimator != AdvantageEstimator::reinforce_plus_plus)
        return fail("advantages: only reinforce_plus_plus supports penalties of tokens");
    const Groups of = answers_of(groups);
    std::vector<double> all;
    for (size_t i = 0; i < rewards.size(); ++i) {
        const double of_answer = group_advantage(rewards, of.at(groups[i]), i, options);
        for (const double penalty : penalties[i]) {
            if (!std::isfinite(penalty)) return fail("advantages: a penalty of answer {} is {}", i, penalty);
            all.push_back(of_answer - penalty);
        }
    }
    whiten(all, std::vector<int64_t>(all.size(), 1));
    clip(all, options);
    std::vector<std::vector<double>> out;
    for (auto at = all.begin(); const std::vector<double>& p : penalties) {
        out.emplace_back(at, at + std::ssize(p));
        at += std::ssize(p);
    }
    return out;
}

}  // namespace nibble
