#include "eval/statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

const std::vector<double> values{3.5, -1.25, 0.5, 8, 2, 2, -4.75};

// Expected values: numpy 2, np.mean, np.std(ddof=1)/sqrt(n), np.quantile, np.cov.
TEST(Statistics, MeansAndErrorsEqualNumpys) {
    const Estimate m = mean(values);
    EXPECT_DOUBLE_EQ(m.value, 1.4285714285714286);
    EXPECT_DOUBLE_EQ(m.error, 1.4987239470255203);
    EXPECT_EQ(mean(std::vector<double>{2.5}).error, 0);
    const Estimate p = share(std::vector<double>{1, 0, 0, 1, 1});
    EXPECT_DOUBLE_EQ(p.value, 0.6);
    EXPECT_DOUBLE_EQ(p.error, std::sqrt(0.6 * 0.4 / 4));
    EXPECT_DOUBLE_EQ(mean(std::vector<double>{1, 0, 0, 1, 1}).error, p.error);
    const std::vector<double> other{1, 2, 3, 4, 5, 6, 7};
    EXPECT_NEAR(covariance_of_means(values, other), -0.3988095238095238, 1e-15);
}

TEST(Statistics, QuantilesEqualNumpys) {
    std::vector<double> sorted = values;
    std::ranges::sort(sorted);
    EXPECT_EQ(quantile(sorted, 0), -4.75);
    EXPECT_EQ(quantile(sorted, 1), 8);
    EXPECT_EQ(quantile(sorted, 0.5), 2);
    EXPECT_NEAR(quantile(sorted, 0.9), 5.3, 1e-14);
    EXPECT_NEAR(quantile(sorted, 0.05), -3.7, 1e-14);
}

TEST(Statistics, TheBootstrapIsDeterministicAndAgreesWithTheNormalInterval) {
    std::vector<double> normal;  // quantiles of a normal distribution, by Box and Muller over a grid
    for (int i = 0; i < 400; ++i)
        normal.push_back(std::sqrt(-2 * std::log((i % 20 + 0.5) / 20)) * std::cos(6.283185307 * (i / 20 + 0.5) / 20));
    const auto average = [](std::span<double> v) { return mean(v).value; };
    const Interval a = bootstrap(normal, average, 2000, 1), again = bootstrap(normal, average, 2000, 1);
    EXPECT_EQ(a.low, again.low);
    EXPECT_EQ(a.high, again.high);
    const Estimate m = mean(normal);
    EXPECT_NEAR(a.low, m.value - 1.96 * m.error, 0.1 * m.error);
    EXPECT_NEAR(a.high, m.value + 1.96 * m.error, 0.1 * m.error);
    EXPECT_NE(bootstrap(normal, average, 2000, 2).low, a.low);
}

}  // namespace
}  // namespace nibble
