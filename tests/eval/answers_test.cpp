#include "eval/answers.h"

#include "base/json.h"
#include "support/files.h"

#include <gtest/gtest.h>

#include <sstream>

namespace nibble {
namespace {

// tests/oracles/eval_tables.py: Python's re with lm-evaluation-harness' patterns.
TEST(Gsm8kAnswers, EqualTheRegularExpressions) {
    std::istringstream lines(test::read_file(test::test_data("eval/gsm8k_answers.jsonl")));
    int rows = 0, strict = 0;
    for (std::string line; std::getline(lines, line); ++rows) {
        const auto row = parse_json(line);
        ASSERT_TRUE(row.ok());
        const std::string text = (*row)["text"];
        const auto as_json = [](const std::optional<std::string>& found) { return found ? Json(*found) : Json(); };
        EXPECT_EQ(as_json(gsm8k_strict(text)), (*row)["strict"]) << line;
        EXPECT_EQ(as_json(gsm8k_flexible(text)), (*row)["flexible"]) << line;
        EXPECT_EQ(gsm8k_normalized(text), (*row)["normalized"].get<std::string>()) << line;
        strict += !(*row)["strict"].is_null();
    }
    EXPECT_GT(rows, 300);
    EXPECT_GT(strict, 5);
}

TEST(FunctionBody, EndsWhereTheFunctionDoes) {
    EXPECT_EQ(function_body("    return 1\n\ndef g():\n"), "    return 1\n");
    EXPECT_EQ(function_body("    x = 1\n    if x:\n        pass\nprint(x)"), "    x = 1\n    if x:\n        pass");
    EXPECT_EQ(function_body("    return 1"), "    return 1");
    EXPECT_EQ(function_body("\nclass A:"), "");
}

}  // namespace
}  // namespace nibble
