#include "eval/report.h"

#include "support/markup_check.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

EvalReport sample() {
    using Kind = Metric::Kind;
    EvalReport report;
    const auto subject = [](std::string name, double ppl, double acc) {
        SubjectResult s{.name = name, .path = "models/" + name, .stored_bytes = 1000, .bits_per_element = 4.5};
        s.settings = {{"compute", "bf16"}};
        s.tasks.push_back({"perplexity", 3, {{"perplexity", {ppl, 0.25}, Kind::perplexity, true}}});
        s.tasks.push_back({"lambada", 100, {{"accuracy", {acc, 0.05}, Kind::share, true}}});
        return s;
    };
    report.subjects = {subject("<four> & bits", 12.5, 0.45), subject("reference", 10, 0.5)};
    report.subjects[0].tasks[0].metrics.push_back({"KL mean", {0.04, 0.001}, Kind::plain});
    report.subjects[0].tasks[0].details = {{"kl_quantiles", {{0.01, 1e-5}, {0.5, 0.01}, {0.99, 0.5}}}};
    report.reference = 1;
    return report;
}

TEST(EvalReport, ARelativeScoreIsTheScoreDividedByTheReferences) {
    const EvalReport report = sample();
    EXPECT_DOUBLE_EQ(relative_score(report, 0, 0, 0)->value, 1.25);  // a perplexity above the reference's is worse
    EXPECT_NEAR(relative_score(report, 0, 0, 0)->error, std::hypot(0.025, 1.25 * 0.025), 1e-12);
    EXPECT_DOUBLE_EQ(relative_score(report, 0, 1, 0)->value, 0.9);
    EXPECT_NEAR(relative_score(report, 0, 1, 0)->error, std::hypot(0.1, 0.09), 1e-12);
    EXPECT_FALSE(relative_score(report, 0, 0, 1));
    EXPECT_FALSE(relative_score(report, 1, 0, 0));
    EvalReport alone = report;
    alone.reference = -1;
    EXPECT_FALSE(relative_score(alone, 0, 0, 0));
}

TEST(EvalReport, Text) {
    EXPECT_EQ(
        report_text(sample()),
        "<four> & bits: 1.00 kB, 4.50 bits per weight\n"
        "  perplexity        perplexity                      12.500 ± 0.25000        1.2500 times the reference's\n"
        "                    KL mean                         0.04000 ± 0.00100\n"
        "  lambada           accuracy                        45.00 ± 5.00 %          90.0 % of the reference\n"
        "\nreference (reference): 1.00 kB, 4.50 bits per weight\n"
        "  perplexity        perplexity                      10.000 ± 0.25000\n"
        "  lambada           accuracy                        50.00 ± 5.00 %\n");
}

TEST(EvalReport, JsonHasEveryNumber) {
    const Json json = to_json(sample());
    const Json& first = json["checkpoints"][0];
    EXPECT_EQ(first["tasks"][0]["metrics"]["perplexity"]["value"], 12.5);
    EXPECT_EQ(first["tasks"][1]["metrics"]["accuracy"]["recovery"], 0.9);
    EXPECT_EQ(first["tasks"][0]["metrics"]["perplexity"]["ratio"], 1.25);
    EXPECT_FALSE(first["tasks"][0]["metrics"]["perplexity"].contains("recovery"));
    EXPECT_EQ(json["reference"], "reference");
}

TEST(EvalReport, ThePageHoldsTheReportAndTheKindsOfItsMetrics) {
    const std::string page = render_html(sample());
    EXPECT_EQ(test::check_markup(page).error, "");
    EXPECT_EQ(page.find("<four>"), std::string::npos);
    const Json data = test::page_data(page);
    EXPECT_EQ(data["report"], to_json(sample()));
    EXPECT_EQ(data["reference"], 1);
    EXPECT_EQ(data["kinds"], (Json{{{"perplexity", "perplexity"}, {"KL mean", "plain"}}, {{"accuracy", "share"}}}));
    EXPECT_EQ(page, render_html(sample()));
    EXPECT_EQ(test::page_data(render_html({}))["reference"], -1);
}

}  // namespace
}  // namespace nibble
