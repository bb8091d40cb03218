#include "rl/advantage.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace nibble {
namespace {

struct GroupSums {
    int64_t count = 0;
    double sum = 0, squares = 0;
};

std::map<int64_t, GroupSums> sums_of_groups(std::span<const double> rewards, std::span<const int64_t> groups) {
    std::map<int64_t, GroupSums> all;
    for (size_t i = 0; i < rewards.size(); ++i) {
        GroupSums& g = all[groups[i]];
        ++g.count, g.sum += rewards[i], g.squares += rewards[i] * rewards[i];
    }
    return all;
}

// With Bessel's correction; 0 for fewer than two rewards and where rounding left a negative variance.
double deviation(double mean, double mean_square, double n) {
    const double s = std::sqrt((mean_square - mean * mean) * n / (n - 1));
    return std::isfinite(s) ? s : 0;
}

double group_advantage(double reward, const GroupSums& g, const AdvantageOptions& o) {
    if (g.count <= 1) return 0;
    const bool without =
        o.estimator == AdvantageEstimator::rloo || (o.estimator == AdvantageEstimator::grpo && o.leave_one_out);
    const double n = static_cast<double>(g.count - (without ? 1 : 0));
    const double baseline = (g.sum - (without ? reward : 0)) / n;
    const double advantage = reward - baseline;
    if (o.estimator != AdvantageEstimator::grpo || !o.normalize_rewards) return advantage;
    const double s = deviation(baseline, (g.squares - (without ? reward * reward : 0)) / n, n);
    return s > 0 ? advantage / (s + 1e-6) : advantage;
}

// (A - mean) / sqrt(max(variance, 1e-8)) over all generated tokens, each of which has its answer's advantage.
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
        return fail("advantages: {} rewards, {} groups, {} lengths", rewards.size(), groups, lengths);
    for (size_t i = 0; i < rewards.size(); ++i)
        if (!std::isfinite(rewards[i])) return fail("advantages: the reward of answer {} is {}", i, rewards[i]);
    return Ok{};
}

}  // namespace

Result<AdvantageEstimator> advantage_estimator_from_name(std::string_view name) {
    if (name == "grpo") return AdvantageEstimator::grpo;
    if (name == "rloo") return AdvantageEstimator::rloo;
    if (name == "reinforce_plus_plus") return AdvantageEstimator::reinforce_plus_plus;
    if (name == "reward") return AdvantageEstimator::reward;
    return fail("advantage estimator '{}': choose one of: grpo, rloo, reinforce_plus_plus, reward", name);
}

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
        const auto sums = sums_of_groups(rewards, groups);
        for (size_t i = 0; i < a.size(); ++i) a[i] = group_advantage(rewards[i], sums.at(groups[i]), options);
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
        return fail("advantages: reinforce_plus_plus alone has penalties of tokens");
    const auto sums = sums_of_groups(rewards, groups);
    std::vector<double> all;
    for (size_t i = 0; i < rewards.size(); ++i) {
        const double of_answer = group_advantage(rewards[i], sums.at(groups[i]), options);
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

std::vector<double> group_deviations(std::span<const double> rewards, std::span<const int64_t> groups) {
    const auto sums = sums_of_groups(rewards, groups);
    std::vector<double> out;
    for (size_t i = 0; i < rewards.size(); ++i) {
        const GroupSums& g = sums.at(groups[i]);
        const auto n = static_cast<double>(g.count);
        out.push_back(deviation(g.sum / n, g.squares / n, n));
    }
    return out;
}

}  // namespace nibble
