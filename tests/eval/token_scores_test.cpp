#include "eval/token_scores.h"

#include "support/files.h"

#include <gtest/gtest.h>

#include <cmath>

namespace nibble {
namespace {

// tests/oracles/eval_tables.py: numpy, in double.
class TokenScoresOracle : public testing::Test {
protected:
    void SetUp() override {
        auto json = read_json_file(test::test_data("eval/token_scores.json"));
        ASSERT_TRUE(json.ok()) << json.error().message();
        table = std::move(*json);
        for (size_t i = 0; i < table["target"].size(); ++i)
            scores.add(table["model"][i].get<std::vector<float>>(), table["reference"][i].get<std::vector<float>>(),
                       table["target"][i]);
    }
    void expect(const Estimate& got, const char* name, double tolerance = 1e-13) const {
        const double value = table[name][0], error = table[name][1];
        EXPECT_NEAR(got.value, value, tolerance * std::abs(value)) << name;
        EXPECT_NEAR(got.error, error, tolerance * std::abs(error)) << name;
    }
    Json table;
    TokenScores scores;
};

TEST_F(TokenScoresOracle, DivergenceOfRows) {
    for (size_t i = 0; i < scores.kl.size(); ++i) EXPECT_NEAR(scores.kl[i], table["kl"][i].get<double>(), 1e-15);
}

TEST_F(TokenScoresOracle, Summary) {
    const TextScore s = summarize_scores(scores);
    EXPECT_EQ(s.tokens, 6);
    expect(s.perplexity, "perplexity");
    ASSERT_TRUE(s.comparison);
    const Comparison& c = *s.comparison;
    expect(c.reference_perplexity, "reference_perplexity");
    expect(c.kl, "kl_mean");
    expect(c.same_top, "same_top");
    expect(c.log_ratio, "log_ratio", 1e-12);
    expect(c.perplexity_delta, "delta", 1e-12);
    expect(c.probability_rms, "rms", 1e-12);
    EXPECT_NEAR(c.at(0.5), table["kl_median"].get<double>(), 1e-15);
    EXPECT_NEAR(c.at(0.99), table["kl_99"].get<double>(), 1e-15);
    EXPECT_NEAR(c.kl_max, table["kl_max"].get<double>(), 1e-15);
    EXPECT_LE(c.kl_median_interval.low, c.at(0.5));
    EXPECT_GE(c.kl_median_interval.high, c.at(0.5));
}

TEST_F(TokenScoresOracle, AJournalKeepsEveryBit) {
    const auto text = parse_json(to_json(scores).dump());
    ASSERT_TRUE(text.ok());
    const auto back = token_scores_from_json(*text);
    ASSERT_TRUE(back.ok()) << back.error().message();
    EXPECT_EQ(back->nll, scores.nll);
    EXPECT_EQ(back->reference_nll, scores.reference_nll);
    EXPECT_EQ(back->kl, scores.kl);
    EXPECT_EQ(back->same_top, scores.same_top);
    Json shorter = to_json(scores);
    shorter["kl"].erase(0);
    EXPECT_FALSE(token_scores_from_json(shorter).ok());
}

TEST(TokenScores, TheDivergenceFromItselfIsZeroAndAnImpossibleTokenAddsNothing) {
    const float h = std::log(0.5f);
    const std::vector<float> p{h, h, -INFINITY}, q{h, h, -3.0f};
    EXPECT_EQ(kl_divergence(p, p), 0);
    EXPECT_EQ(kl_divergence(p, q), 0);
    EXPECT_EQ(kl_divergence(q, p), INFINITY);
    EXPECT_EQ(likeliest(p), 0u);
}

}  // namespace
}  // namespace nibble
