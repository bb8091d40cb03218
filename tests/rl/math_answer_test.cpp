// Compares extraction and comparison of answers with the math-verify package (tests/oracles/math_verify_cases.py).
#include "rl/math_answer.h"
#include "base/json.h"
#include "rl/math_expression.h"
#include "support/files.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

namespace nibble {
namespace {

TEST(MathAnswer, AgreesWithMathVerify) {
    const auto rows = read_json_file(test::test_data("rl") / "math_answers.json");
    ASSERT_TRUE(rows.ok()) << rows.error().message();
    ASSERT_EQ(rows->size(), 54u);
    for (const Json& row : *rows) {
        const std::string expected = row["expected"], given = row["given"];
        // nibble compares decimals to 1e-6. math-verify compares this pair exactly, although it accepts 0.333333 for
        // 1/3.
        if (given == "7.0000001") continue;
        EXPECT_EQ(same_math_answer(expected, given), row["same"].get<bool>()) << expected << " | " << given;
    }
}

struct MathVerifyAgreement {
    int cases = 0, alike = 0, too_kind = 0;  // too_kind: nibble accepts, math-verify does not
};

// Counts agreement with math-verify by table. all: without kinds with a known difference ("other").
std::map<std::string, MathVerifyAgreement> agreement_with_math_verify(const Json& rows, MathVerifyAgreement& all) {
    std::map<std::string, MathVerifyAgreement> tables;
    for (const Json& row : rows) {
        const std::string gold = row["gold"], given = row["pred"], table = row["table"];
        const bool same = row["same"], ours = math_reward(given, marked_answer(gold).value_or(gold)) == 1;
        MathVerifyAgreement unused;
        for (MathVerifyAgreement* t : {row.value("other", false) ? &unused : &all, &tables[table]})
            ++t->cases, t->alike += ours == same, t->too_kind += ours && !same;
        if (ours != same && std::getenv("NIBBLE_MATH_SHOW"))
            fmt::print("{} | {} | {} | {}\n", same ? "same" : "other", table, gold, given);
    }
    for (const auto& [name, t] : tables)
        fmt::print("{:50} {:3} of {:3} alike, {} too kind\n", name, t.alike, t.cases, t.too_kind);
    return tables;
}

// tests/oracles/math_verify_own_cases.py fetches the pairs of math-verify's own tests and runs this test.
TEST(MathAnswer, OwnCasesOfMathVerify) {
    const char* file = std::getenv("NIBBLE_MATH_CASES");
    if (!file) GTEST_SKIP() << "run by tests/oracles/math_verify_own_cases.py";
    const auto rows = read_json_file(file);
    ASSERT_TRUE(rows.ok()) << rows.error().message();
    MathVerifyAgreement all;
    agreement_with_math_verify(*rows, all);
    fmt::print("{:50} {:3} of {:3} alike, {} too kind\n", "all", all.alike, all.cases, all.too_kind);
    EXPECT_EQ(all.cases, 274);
    EXPECT_GE(all.alike, 236);
    EXPECT_LE(all.too_kind, 2);
}

// tests/oracles/math_verify_pairs.py generates the pairs and runs this test. Kinds with a known difference are counted,
// and must agree for at least half of their pairs.
TEST(MathAnswer, GeneratedPairsOfMathVerify) {
    const char* file = std::getenv("NIBBLE_MATH_PAIRS");
    if (!file) GTEST_SKIP() << "run by tests/oracles/math_verify_pairs.py";
    const auto rows = read_json_file(file);
    ASSERT_TRUE(rows.ok()) << rows.error().message();
    MathVerifyAgreement all;
    for (const auto& [name, t] : agreement_with_math_verify(*rows, all)) EXPECT_GT(2 * t.alike, t.cases) << name;
    fmt::print("{:50} {:3} of {:3} alike, {} too kind\n", "all but those named", all.alike, all.cases, all.too_kind);
    EXPECT_GE(all.cases, 600);
    EXPECT_EQ(all.alike, all.cases);
}

// Pairs that were once judged differently.
TEST(MathAnswer, ValuesInOtherWords) {
    for (const auto& [expected, given] : std::initializer_list<std::pair<const char*, const char*>>{
             {"y = 4x + 5", "4x + 5 = y"},
             {"x > -7", "-7 < x"},
             {"x \\ge 2", "2 \\le x"},
             {"\\log_{2} 7", "\\log_2(7)"},
             {"\\log_{2} 8", "3"},
             {"\\tan^2(y)+1", "\\sec^2(y)"},
             {"1 \\pm \\sqrt{5}", "1-\\sqrt{5}, 1+\\sqrt{5}"},
             {"\\{1\\pm\\sqrt{5},-2\\}", "\\{-2, 1+\\sqrt{5}, 1-\\sqrt{5}\\}"},
             {"(1,2) \\cup [3,4)", "[3, 4)\\cup(1, 2)"},
             {"\\begin{pmatrix} 1 & 2 \\end{pmatrix}", "\\begin{bmatrix}1&2\\end{bmatrix}"},
             {"|AB| = 1", "1"},
             {"35", "35 cm"},
             {"(2,12) \\cup (12,102)", "(2, 12) \\cup (12, 102)"}})
        EXPECT_TRUE(same_math_answer(expected, given)) << expected << " | " << given;
    for (const auto& [expected, given] :
         std::initializer_list<std::pair<const char*, const char*>>{{"4.7 \\times 10^{6}", "4700001"},
                                                                    {"\\frac{40}{3}", "13.33333"},
                                                                    {"x = 42", "y = 42"},
                                                                    {"x > -7", "x < -7"},
                                                                    {"x > -7", "x \\ge -7"},
                                                                    {"1 \\pm \\sqrt{5}", "1+\\sqrt{5}"},
                                                                    {"(1,2) \\cup [3,4)", "(1,2) \\cup [3,4]"},
                                                                    {"\\log_{2} 7", "\\log_3(7)"},
                                                                    {"2x + 1", "2x + m"}})
        EXPECT_FALSE(same_math_answer(expected, given)) << expected << " | " << given;
    EXPECT_EQ(math_reward("$odd$", "\\text{odd}"), 1);
    EXPECT_EQ(math_reward("$\\frac{1}{3} \\text{meters}$", "1/3"), 1);
    EXPECT_EQ(math_reward("It is $5 for one and $7 for two.", "7"), 1);
}

TEST(MathAnswer, IsFoundWhereModelsPutIt) {
    EXPECT_EQ(math_answer("So \\boxed{4}, no: \\boxed{\\frac{1}{2}}."), "\\frac{1}{2}");
    EXPECT_EQ(math_answer("steps\n#### 1,234"), "1,234");
    EXPECT_EQ(math_answer("The answer is 42. Bye."), "42");
    EXPECT_EQ(math_answer("Answer: $x=3$\nmore 17"), "x=3");
    EXPECT_EQ(math_answer("3 apples and 4 make -7."), "-7");
    EXPECT_EQ(math_answer("so $x=1$ and then \\[ x = \\frac{3}{4} \\] holds"), "x = \\frac{3}{4}");
    EXPECT_EQ(math_answer("it costs $5 and later $10 more"), "10");
    EXPECT_EQ(math_answer("with $n = 4$ there are 12 of them"), "12");
    EXPECT_EQ(math_answer("\\boxed{1}, \\boxed{2} and $\\boxed{3}$"), "1, 2, 3");
    EXPECT_EQ(math_answer("\\boxed{1} is no root, but \\boxed{2}"), "2");
    EXPECT_EQ(math_answer("The answer is that it takes 3 hours"), "3");
    EXPECT_EQ(math_answer("\\frac{10}{9}"), "\\frac{10}{9}");
    EXPECT_EQ(math_answer("model AZ2B"), std::nullopt);
    for (const char* text : {"It is 22.", "so x is 22", "a 22", "17 + 5 = 22\nWhat is"})
        EXPECT_EQ(math_answer(text), "22") << text;
    EXPECT_EQ(math_reward("17 + 5", "22"), 0);  // the last number, not a sum
    EXPECT_EQ(math_answer("no number here"), std::nullopt);
    EXPECT_EQ(math_answer("\\boxed{open"), std::nullopt);
    EXPECT_EQ(math_reward("First 3, then the answer is 1/2", "0.5"), 1);
    EXPECT_EQ(math_reward("\\boxed{7}", "8"), 0);
    EXPECT_EQ(math_reward("", "8"), 0);
}

TEST(MathAnswer, ListsNamesAndUnits) {
    const std::pair<const char*, const char*> same[] = {
        {"(1, 2), (3, 4)", "(3,4) \\text{ and } (1, 2)"},
        {"1; 2", "\\{2, 1\\}"},
        {"{1,2}", "2, 1, 1"},
        {"6 \\text{ and } 8", "8, 6"},
        {"(x, y) = (5, 8)", "(5, 8)"},
        {"[0, 1]", "x \\in [0, 1]"},
        {"x = 2 + 3 = 5", "5"},
        {"1/3", "x = 1/3 \\approx 0.33"},
        {"15\\mbox{ cm}^2", "15"},
        {"28\\%", "28 percent"},
        {"x \\geq 5", "x >= 5"},
    };
    for (const auto& [a, b] : same) EXPECT_TRUE(same_math_answer(a, b) && same_math_answer(b, a)) << a << " | " << b;
    const std::pair<const char*, const char*> other[] = {{"(1, 2), (3, 4)", "(1, 2), (4, 3)"},
                                                         {"(0, 9)", "[0, 9)"},
                                                         {"1, 2", "1, 3"},
                                                         {"1, 2", "1"},
                                                         {"a^2 + b = 0", "0"},
                                                         {"7 = 11a + c", "11a+c"},
                                                         {"x > 5", "x < 5"}};
    for (const auto& [a, b] : other) EXPECT_FALSE(same_math_answer(a, b) || same_math_answer(b, a)) << a << " | " << b;
}

TEST(MathExpression, HostileTextIsAnErrorOrFalse) {
    EXPECT_FALSE(MathExpression::parse(std::string(5000, '1')).ok());
    EXPECT_FALSE(MathExpression::parse(std::string(3000, '(')).ok());
    EXPECT_FALSE(MathExpression::parse("2+").ok());
    EXPECT_FALSE(MathExpression::parse("\\frac{1}").ok());
    EXPECT_FALSE(MathExpression::parse("").ok());
    EXPECT_FALSE(same_math_answer("1/0", "2/0"));  // an expression without a value equals nothing
    EXPECT_FALSE(same_math_answer("9^9^9^9", "9^9^9^8"));
    EXPECT_FALSE(same_math_answer("5", std::string(100000, '5')));
    EXPECT_FALSE(same_math_answer("5", std::string(4000, '-')));
}

}  // namespace
}  // namespace nibble
