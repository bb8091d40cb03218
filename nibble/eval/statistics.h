// Means, quantiles and their uncertainty. Sums run left to right in double: the same values give the same bits.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace nibble {

struct Estimate {
    double value = 0;
    double error = 0;  // one standard error; 0 for fewer than two values
};

Estimate mean(std::span<const double> values);           // standard error of the mean, n - 1 in the variance
Estimate share(std::span<const double> zeros_and_ones);  // sqrt(p (1 - p) / (n - 1))
double covariance_of_means(std::span<const double> a,
                           std::span<const double> b);  // Returns the covariance of the means of paired values.

// Interpolates linearly between order statistics (numpy's default). `sorted` is ascending and not empty; q is in [0,
// 1].
double quantile(std::span<const double> sorted, double q);

struct Interval {
    double low = 0, high = 0;
};
// Returns the 95 % percentile interval of a statistic over `resamples` draws with replacement. Random numbers come from
// Philox, keyed by (seed, resample). The statistic may reorder its argument.
Interval bootstrap(std::span<const double> values, const std::function<double(std::span<double>)>& statistic,
                   int resamples, uint64_t seed);

}  // namespace nibble
