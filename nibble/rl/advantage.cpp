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
void whiten(std::vector<double>& a, std::span<const int64_t> tokens) {
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
    if (groups.size() != rewards.size() || tokens.size() != rewards.size())
        return fail("advantages: {} rewards, {} groups, {} lengths", rewards.size(), groups.size(), tokens.size());
    for (size_t i = 0; i < rewards.size(); ++i)
        if (!std::isfinite(rewards[i])) return fail("advantages: the reward of answer {} is {}", i, rewards[i]);
    std::vector<double> a(rewards.begin(), rewards.end());
    if (options.estimator != AdvantageEstimator::reward) {
        const auto sums = sums_of_groups(rewards, groups);
        for (size_t i = 0; i < a.size(); ++i) a[i] = group_advantage(rewards[i], sums.at(groups[i]), options);
    }
    if (options.estimator == AdvantageEstimator::reinforce_plus_plus) whiten(a, tokens);
    for (double& x : a) {
        if (options.clip_low) x = std::max(x, *options.clip_low);
        if (options.clip_high) x = std::min(x, *options.clip_high);
    }
    return a;
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
