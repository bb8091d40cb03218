#include "quant/ranges.h"

#include "formats/minifloat.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

using namespace nibble;

namespace {

std::vector<float> values(size_t n) {
    std::vector<float> x(n);
    for (size_t i = 0; i < n; ++i) {
        const double u = (static_cast<double>(i * 2654435761u % 1000003u) + 0.5) / 1000003.0;
        x[i] = static_cast<float>(std::log(u) * (i % 2 ? 1 : -1));
    }
    return x;
}

float with_rule(RangeRule rule, const std::vector<float>& x) {
    Range range(rule);
    range.add(x.data(), 1, static_cast<int64_t>(x.size()));
    return range.amax();
}

double fp8_error(const std::vector<float>& x, float amax) {
    double sum = 0;
    for (const float v : x) {
        const double e = v - e4m3_to_float(e4m3_from_float_saturating(v / (amax / 448))) * (amax / 448);
        sum += e * e;
    }
    return sum;
}

TEST(Range, MaximumIsExactAndDetectsNan) {
    std::vector<float> x{1.0f, -3.25f, 0.0f};
    EXPECT_EQ(with_rule({}, x), 3.25f);
    x.push_back(std::numeric_limits<float>::quiet_NaN());
    EXPECT_TRUE(std::isnan(with_rule({}, x)));
    EXPECT_EQ(Range().amax(), 0.0f);
}

TEST(Range, OrderAndPiecesDoNotChangeBits) {
    auto x = values(4000);
    for (const auto kind : {RangeRule::Kind::max, RangeRule::Kind::percentile, RangeRule::Kind::mse}) {
        Range whole({kind, 99.0}), parts({kind, 99.0});
        whole.add(x.data(), 40, 100);
        std::ranges::reverse(x);
        parts.add(x.data(), 10, 100);
        parts.add(x.data() + 1000, 30, 100);
        EXPECT_EQ(whole.amax(), parts.amax());
        EXPECT_EQ(parts.rows(), 40);
    }
}

TEST(Range, PercentileIsWithinABucketOfTheSortedValue) {
    const auto x = values(20000);
    std::vector<float> sorted;
    for (const float v : x) sorted.push_back(std::fabs(v));
    std::ranges::sort(sorted);
    for (const double p : {50.0, 90.0, 99.0, 99.9}) {
        const float exact = sorted[static_cast<size_t>(p / 100 * 20000) - 1];
        const float found = with_rule({RangeRule::Kind::percentile, p}, x);
        EXPECT_GE(found, exact) << p;
        EXPECT_LE(found, exact * (1 + 1.0f / 64)) << p;
    }
    EXPECT_EQ(with_rule({RangeRule::Kind::percentile, 100.0}, x), sorted.back());
}

TEST(Range, MseChoosesTheBestCandidate) {
    auto x = values(20000);
    const float largest = with_rule({}, x), amax = with_rule({RangeRule::Kind::mse, 0}, x);
    double most = 0;
    for (int step = 1; step <= 64; ++step) {
        const double error = fp8_error(x, largest * static_cast<float>(step) / 64);
        EXPECT_LE(fp8_error(x, amax), error * 1.02) << step;  // buckets have a relative precision of 1/128
        most = std::max(most, error);
    }
    EXPECT_LT(fp8_error(x, amax), most / 2);
}

}  // namespace
