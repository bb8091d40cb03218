// Compares with the results of Python's module re in tests/data/python_regex.json, which tests/oracles/python_regex.py
// writes and checks.
#include "text/python_regex.h"

#include "base/json.h"
#include "support/files.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

const Json& python_table() {
    static const Json table = *read_json_file(test::test_data("python_regex.json"));
    return table;
}

TEST(PythonRegex, MatchesWhatPythonMatches) {
    const Json& table = python_table();
    ASSERT_GT(table["rows"].size(), 150u);
    for (const Json& row : table["rows"]) {
        const std::string pattern = row["pattern"], answers = row["answers"];
        const auto regex = PythonRegex::compile(pattern);
        if (answers == "E" || row.contains("refused")) {
            EXPECT_FALSE(regex.ok()) << pattern;
            continue;
        }
        ASSERT_TRUE(regex.ok()) << pattern << ": " << regex.error().message();
        for (size_t i = 0; i < answers.size(); ++i) {
            const std::string text = table["texts"][i];
            const auto matched = regex->match(text);
            ASSERT_TRUE(matched.ok()) << matched.error().message();
            EXPECT_EQ(*matched, answers[i] == '1') << pattern << " on " << text;
        }
    }
}

TEST(PythonRegex, RefusesByNameWhatPcre2CannotDo) {
    for (const Json& row : python_table()["rows"]) {
        if (!row.contains("refused")) continue;
        const auto regex = PythonRegex::compile(row["pattern"].get<std::string>());
        ASSERT_FALSE(regex.ok());
        EXPECT_NE(regex.error().message().find(row["refused"].get<std::string>()), std::string::npos)
            << regex.error().message();
    }
}

TEST(PythonRegex, BoundsItsWork) {
    const auto regex = PythonRegex::compile("(a|aa|aaa)*(a|aa)*[bc]");
    ASSERT_TRUE(regex.ok());
    const auto matched = regex->match(std::string(200, 'a'));
    ASSERT_FALSE(matched.ok());
    EXPECT_NE(matched.error().message().find("steps"), std::string::npos) << matched.error().message();
    EXPECT_FALSE(PythonRegex::compile(std::string(5000, 'a')).ok());
    EXPECT_FALSE(PythonRegex::compile(std::string(500, '(') + std::string(500, ')')).ok());
    EXPECT_FALSE(PythonRegex::compile("a\xff").ok());
}

}  // namespace
}  // namespace nibble
