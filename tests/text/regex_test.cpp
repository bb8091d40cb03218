#include "text/regex.h"

#include <gtest/gtest.h>

#include <ctime>

namespace nibble {
namespace {

struct Search {
    std::string error;
    double processor_seconds = 0;
};

Search search_all(const Pattern& pattern, std::string_view text, int64_t steps) {
    Meter meter({.steps = steps, .bytes = 16 << 20});
    RegexSearch search(pattern, text, meter);
    Search out;
    const auto begin = std::clock();
    for (Span match;;) {
        const auto next = search.next(match);
        if (!next.ok()) out.error = next.error().message();
        if (!next.ok() || !*next) break;
    }
    out.processor_seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    return out;
}

// Patterns whose search tries 2^200 ways or more in repeated "a", with every kind of group and repeat. The texts end in
// "zb", because PCRE2 does not search where a required letter is missing, nor where the text is too short to match.
class RegexBacktracking : public testing::TestWithParam<const char*> {};

TEST_P(RegexBacktracking, StopsAtTheMeter) {
    const auto pattern = Pattern::regex(GetParam());
    ASSERT_TRUE(pattern.ok()) << pattern.error().message();
    const Search found = search_all(*pattern, std::string(1500, 'a') + "zb", 100'000);
    EXPECT_NE(found.error.find("steps"), std::string::npos) << found.error;
    EXPECT_LT(found.processor_seconds, 5);
    EXPECT_LT(search_all(*pattern, std::string(200, 'a') + "zb", 100'000).processor_seconds, 5);
}

INSTANTIATE_TEST_SUITE_P(Patterns, RegexBacktracking,
                         testing::Values("(?:a|a)*b", "(?:a|a)+b", "(?:a|a)+?b", "(?:a|a){50}b", "(?:a|a){1017}b",
                                         "(?:a|a){1017,}b", "(?:a|a){300,400}b", "(?:a|a){1017}?b", "(a|a){1017}b",
                                         "(?<name>a|a){1017}b", "(?i:a|A){1017}b", "(?:a|aa|aaa){1017}b",
                                         "(?:(?:a|a){5}){300}b", "(?:(?:a|a){1}(?:a|a){1}){300}b", "(?:(?:a|a)){1017}b",
                                         "(?=(?:a|a){1017}b)a", "(?!(?:a|a){1017}b)a", "(?>(?:a|a){1017}b)",
                                         "(?:(?>a|a)|a){1017}b", "(?:a?a?){1017}b", "(?:a*){1017}b", "(?:a+a+)+b",
                                         "(?:(?i)a|a){1017}b"));

TEST(Regex, AGroupWithACountMatchesAsBefore) {
    const auto pattern = Pattern::regex("(?:a|(?<two>b)){2,3}(c|d){1}");
    ASSERT_TRUE(pattern.ok()) << pattern.error().message();
    Meter meter({.steps = 1000, .bytes = 1 << 20});
    RegexSearch search(*pattern, "acabcbbbdabab", meter);
    Span match;
    const auto first = search.next(match);
    ASSERT_TRUE(first.ok() && *first);
    EXPECT_EQ((std::pair{match.begin, match.end}), (std::pair<size_t, size_t>{2, 5}));
    const auto second = search.next(match);
    ASSERT_TRUE(second.ok() && *second);
    EXPECT_EQ((std::pair{match.begin, match.end}), (std::pair<size_t, size_t>{5, 9}));
    const auto third = search.next(match);
    EXPECT_TRUE(third.ok() && !*third);
}

TEST(Regex, RefusesUnbalancedGroups) {
    for (const char* pattern : {")", "a){2}", "(", "(?:a", "(a))"})
        EXPECT_FALSE(Pattern::regex(pattern).ok()) << pattern;
}

}  // namespace
}  // namespace nibble
