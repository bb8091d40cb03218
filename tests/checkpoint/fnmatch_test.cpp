#include "checkpoint/fnmatch.h"

#include "support/files.h"

#include <gtest/gtest.h>

#include <sstream>

namespace nibble {
namespace {

TEST(Fnmatch, AgreesWithPythonOnEveryRowOfTheTable) {
    std::istringstream table(test::read_file(test::test_data("fnmatch.tsv")));
    int matching = 0, other = 0;
    for (std::string line; std::getline(table, line);) {
        if (line.starts_with('#')) continue;
        const size_t a = line.find('\t'), b = line.rfind('\t');
        const std::string pattern = line.substr(0, a), name = line.substr(a + 1, b - a - 1);
        const bool want = line.substr(b + 1) == "1";
        ++(want ? matching : other);
        EXPECT_EQ(NamePattern(pattern).matches(name), want) << "'" << pattern << "' on '" << name << "'";
    }
    EXPECT_GT(matching, 300);
    EXPECT_GT(other, 300);
}

TEST(Fnmatch, CountsCharactersNotBytes) {
    EXPECT_TRUE(NamePattern("a?b").matches("a\u00e9b"));
    EXPECT_FALSE(NamePattern("a??b").matches("a\u00e9b"));
    EXPECT_TRUE(NamePattern("[\u00e0-\u00ff]").matches("\u00e9"));
    EXPECT_TRUE(NamePattern("?").matches("\xff")) << "a byte that is not UTF-8 is one character";
}

TEST(Fnmatch, ManyStarsDoNotTakeExponentialTime) {
    std::string pattern, name(5000, 'a');
    for (int i = 0; i < 40; ++i) pattern += "*a";
    EXPECT_FALSE(NamePattern(pattern + "b").matches(name));
    EXPECT_TRUE(NamePattern(pattern + "*").matches(name));
}

}  // namespace
}  // namespace nibble
