// Answers found and compared, beside what the math-verify package says (tests/oracles/math_verify_cases.py).
#include "rl/math_answer.h"
#include "base/json.h"
#include "rl/math_expression.h"
#include "support/files.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

TEST(MathAnswer, AgreesWithMathVerify) {
    const auto rows = read_json_file(test::test_data("rl") / "math_answers.json");
    ASSERT_TRUE(rows.ok()) << rows.error().message();
    ASSERT_EQ(rows->size(), 54u);
    for (const Json& row : *rows) {
        const std::string expected = row["expected"], given = row["given"];
        // Ours compares decimals to 1e-6; math-verify compares this pair exactly, although it takes 0.333333 for 1/3.
        if (given == "7.0000001") continue;
        EXPECT_EQ(same_math_answer(expected, given), row["same"].get<bool>()) << expected << " | " << given;
    }
}

TEST(MathAnswer, IsFoundWhereModelsPutIt) {
    EXPECT_EQ(math_answer("So \\boxed{4}, no: \\boxed{\\frac{1}{2}}."), "\\frac{1}{2}");
    EXPECT_EQ(math_answer("steps\n#### 1,234"), "1,234");
    EXPECT_EQ(math_answer("The answer is 42. Bye."), "42");
    EXPECT_EQ(math_answer("Answer: $x=3$\nmore 17"), "x=3");
    EXPECT_EQ(math_answer("3 apples and 4 make -7."), "-7");
    EXPECT_EQ(math_answer("no number here"), std::nullopt);
    EXPECT_EQ(math_answer("\\boxed{open"), std::nullopt);
    EXPECT_EQ(math_reward("First 3, then the answer is 1/2", "0.5"), 1);
    EXPECT_EQ(math_reward("\\boxed{7}", "8"), 0);
    EXPECT_EQ(math_reward("", "8"), 0);
}

TEST(MathExpression, HostileTextIsAnErrorOrFalse) {
    EXPECT_FALSE(MathExpression::parse(std::string(5000, '1')).ok());
    EXPECT_FALSE(MathExpression::parse(std::string(3000, '(')).ok());
    EXPECT_FALSE(MathExpression::parse("2+").ok());
    EXPECT_FALSE(MathExpression::parse("\\frac{1}").ok());
    EXPECT_FALSE(MathExpression::parse("").ok());
    EXPECT_FALSE(same_math_answer("1/0", "2/0"));  // no value equals no value
    EXPECT_FALSE(same_math_answer("9^9^9^9", "9^9^9^8"));
    EXPECT_FALSE(same_math_answer("5", std::string(100000, '5')));
    EXPECT_FALSE(same_math_answer("5", std::string(4000, '-')));
}

}  // namespace
}  // namespace nibble
