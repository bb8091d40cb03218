#include "quant/knapsack.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace nibble {
namespace {

using Groups = std::vector<std::vector<KnapsackChoice>>;

struct Sum {
    int64_t cost = 0;
    double score = 0;
};

Sum sum_of(const Groups& groups, const std::vector<size_t>& chosen) {
    Sum sum;
    for (size_t g = 0; g < groups.size(); ++g) {
        sum.cost += groups[g][chosen[g]].cost;
        sum.score += groups[g][chosen[g]].score;
    }
    return sum;
}

// Tries all combinations.
double least_score(const Groups& groups, int64_t budget) {
    std::vector<size_t> at(groups.size(), 0);
    double least = INFINITY;
    for (;;) {
        const Sum sum = sum_of(groups, at);
        if (sum.cost <= budget) least = std::min(least, sum.score);
        size_t g = 0;
        while (g < groups.size() && ++at[g] == groups[g].size()) at[g++] = 0;
        if (g == groups.size()) return least;
    }
}

TEST(Knapsack, EqualsBruteForce) {
    std::mt19937 random(1);
    for (int trial = 0; trial < 60; ++trial) {
        Groups groups(1 + random() % 8);
        int64_t least = 0, most = 0;
        for (auto& choices : groups) {
            const int64_t elements = 1 + random() % (trial % 2 ? 6 : 100000);
            choices.resize(1 + random() % 4);
            int64_t low = INT64_MAX, high = 0;
            for (auto& c : choices) {
                c.cost = elements * int64_t(std::array{4500, 8000, 16000, 4000}[random() % 4]);
                c.score = std::ldexp(double(random() % 1000), -int(random() % 30));
                low = std::min(low, c.cost);
                high = std::max(high, c.cost);
            }
            least += low;
            most += high;
        }
        for (const double share : {0.0, 0.1, 0.3, 0.5, 0.9, 1.0}) {
            const int64_t budget = least + int64_t(share * double(most - least));
            const auto chosen = solve_knapsack(groups, budget);
            ASSERT_TRUE(chosen.ok()) << chosen.error().message();
            const Sum sum = sum_of(groups, *chosen);
            EXPECT_LE(sum.cost, budget);
            const double best = least_score(groups, budget);
            EXPECT_NEAR(sum.score, best, 1e-9 * (1 + best)) << "trial " << trial << " share " << share;
            EXPECT_EQ(*solve_knapsack(groups, budget), *chosen);
        }
    }
}

// A problem as large as a model of 64 layers, compared with the bound of the linear relaxation, computed by walking
// along the efficient frontier.
TEST(Knapsack, ManyGroups) {
    std::mt19937 random(2);
    std::uniform_real_distribution<double> uniform(0, 1);
    const int64_t sizes[] = {960 * 576, 576 * 576, 3072 * 576, 1536 * 576};
    Groups groups;
    int64_t elements = 0;
    for (int i = 0; i < 256; ++i) {
        const int64_t n = sizes[i % 4];
        const double harm = std::exp(4 * uniform(random)) * double(n);
        groups.push_back({{n * 4500, harm}, {n * 8000, harm * 0.03 * uniform(random)}, {n * 16000, 0}});
        elements += n;
    }
    for (const int64_t bits : {4600, 4800, 6000, 8000, 12000}) {
        const auto chosen = solve_knapsack(groups, elements * bits);
        ASSERT_TRUE(chosen.ok()) << chosen.error().message();
        const Sum sum = sum_of(groups, *chosen);
        EXPECT_LE(sum.cost, elements * bits);
        // Lagrangian bound: for any price, the sum of min(score + price * cost) - price * budget is a lower bound.
        double bound = 0;
        for (double exponent = -12; exponent < 2; exponent += 0.02) {
            const double price = std::pow(10.0, exponent);
            double value = -price * double(elements * bits);
            for (const auto& choices : groups) {
                double least = INFINITY;
                for (const auto& c : choices) least = std::min(least, c.score + price * double(c.cost));
                value += least;
            }
            bound = std::max(bound, value);
        }
        EXPECT_GE(sum.score, bound * (1 - 1e-9));
        EXPECT_LE(sum.score, bound * 1.02) << bits;
    }
}

TEST(Knapsack, TakesTheBestOfAllWhenTheBudgetAllows) {
    const Groups groups = {{{10, 5}, {20, 1}, {30, 1}}, {{7, 0}}};
    EXPECT_EQ(*solve_knapsack(groups, 27), (std::vector<size_t>{1, 0}));
    EXPECT_EQ(*solve_knapsack(groups, 1000), (std::vector<size_t>{1, 0}));
    EXPECT_EQ(*solve_knapsack(groups, 26), (std::vector<size_t>{0, 0}));
    EXPECT_EQ(*solve_knapsack(groups, 17), (std::vector<size_t>{0, 0}));
}

TEST(Knapsack, ErrorsNameTheCause) {
    EXPECT_EQ(solve_knapsack(Groups{{{10, 5}, {20, 1}}, {{7, 0}}}, 16).error().message(),
              "the cheapest choices cost 17, the budget is 16");
    EXPECT_EQ(solve_knapsack(Groups{{{10, NAN}}}, 16).error().message(), "group 0 has a score of nan");
    EXPECT_EQ(solve_knapsack(Groups{{{10, -1}}}, 16).error().message(), "group 0 has a score of -1");
    EXPECT_EQ(solve_knapsack(Groups{{}}, 16).error().message(), "group 0 has no choice");
}

}  // namespace
}  // namespace nibble
