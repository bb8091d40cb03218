#include "eval/statistics.h"

#include "base/philox.h"

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

double sum(std::span<const double> values) {
    double s = 0;
    for (const double v : values) s += v;
    return s;
}

}  // namespace

Estimate mean(std::span<const double> values) {
    const auto n = static_cast<double>(values.size());
    if (values.empty()) return {};
    const double m = sum(values) / n;
    return {m, std::sqrt(std::max(0.0, covariance_of_means(values, values)))};
}

Estimate share(std::span<const double> values) {
    const auto n = static_cast<double>(values.size());
    if (values.empty()) return {};
    const double p = sum(values) / n;
    return {p, n > 1 ? std::sqrt(p * (1 - p) / (n - 1)) : 0};
}

double covariance_of_means(std::span<const double> a, std::span<const double> b) {
    const auto n = static_cast<double>(a.size());
    if (a.size() < 2 || a.size() != b.size()) return 0;
    const double ma = sum(a) / n, mb = sum(b) / n;
    double s = 0;
    for (size_t i = 0; i < a.size(); ++i) s += (a[i] - ma) * (b[i] - mb);
    return s / (n - 1) / n;
}

double quantile(std::span<const double> sorted, double q) {
    const double at = q * static_cast<double>(sorted.size() - 1);
    const auto below = static_cast<size_t>(at);
    if (below + 1 >= sorted.size()) return sorted.back();
    const double part = at - static_cast<double>(below);
    return sorted[below] + part * (sorted[below + 1] - sorted[below]);
}

Interval bootstrap(std::span<const double> values, const std::function<double(std::span<double>)>& statistic,
                   int resamples, uint64_t seed) {
    if (values.empty() || resamples < 1) return {};
    std::vector<double> sample(values.size()), results;
    for (int r = 0; r < resamples; ++r) {
        const PhiloxStream stream{seed, static_cast<uint64_t>(r)};
        for (size_t i = 0; i < sample.size(); i += 4) {
            const PhiloxBlock b = stream.block(i / 4);
            for (size_t j = i; j < std::min(i + 4, sample.size()); ++j)  // maps 32 bits to [0, n); bias below n / 2^32
                sample[j] = values[static_cast<size_t>(uint64_t{b.word[j - i]} * values.size() >> 32)];
        }
        results.push_back(statistic(sample));
    }
    std::ranges::sort(results);
    return {quantile(results, 0.025), quantile(results, 0.975)};
}

}  // namespace nibble
