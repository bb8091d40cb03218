// Regular expressions as grammars: compared with a slow matcher on random expressions and texts; the limits; the masks
// compared with a slow computation.
#include "grammar/walks.h"
#include "support/files.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>
#include <tuple>

using namespace nibble;
using namespace nibble::test;

namespace {

std::string error_of(std::string_view pattern, const GrammarLimits& limits = {}) {
    const auto made = Grammar::from_regex(pattern, limits);
    return made.ok() ? "" : made.error().message();
}

bool is_match(std::string_view pattern, std::string_view text) {
    const auto made = Grammar::from_regex(pattern);
    EXPECT_TRUE(made.ok()) << pattern << ": " << error_of(pattern);
    return made.ok() && (*made)->matches(text);
}

// A random expression with its own slow matcher, which returns the possible ends of a match for a given beginning.
struct RandomRegex {
    enum class Kind { character, sequence, choice, repeat };
    Kind kind = Kind::character;
    std::string text;  // the pattern of a character
    std::string set;   // the characters of "abc1" that it matches
    std::vector<RandomRegex> items;
    size_t least = 0, most = 0;

    static RandomRegex make(Dice& dice, int depth) {
        RandomRegex out;
        const uint32_t kind = depth > 0 ? dice.below(6) : 0;
        if (kind < 2) {
            static const std::pair<const char*, const char*> characters[]{
                {"a", "a"},   {"b", "b"},      {"c", "c"},    {"1", "1"},       {"[ab]", "ab"},
                {"\\d", "1"}, {"[^a]", "bc1"}, {".", "abc1"}, {"[^b-c]", "a1"}, {"\\w", "abc1"}};
            const auto& [text, set] = characters[dice.below(std::size(characters))];
            out.text = text;
            out.set = set;
            return out;
        }
        out.kind = kind < 4 ? Kind::sequence : kind < 5 ? Kind::choice : Kind::repeat;
        const uint32_t n = out.kind == Kind::repeat ? 1 : 1 + dice.below(3);
        for (uint32_t i = 0; i < n; ++i) out.items.push_back(make(dice, depth - 1));
        static const std::pair<size_t, size_t> bounds[]{{0, 1}, {0, 99}, {1, 99}, {2, 2}, {1, 2}, {2, 99}};
        std::tie(out.least, out.most) = bounds[dice.below(std::size(bounds))];
        return out;
    }

    std::string pattern() const {
        std::string out;
        for (const RandomRegex& item : items) {
            if (kind == Kind::choice && !out.empty()) out += "|";
            out += item.pattern();
        }
        if (kind == Kind::character) return text;
        if (kind == Kind::choice) return "(" + out + ")";
        if (kind == Kind::sequence) return out;
        out = "(?:" + out + ")";
        if (most == 99) return out + (least == 0 ? "*" : least == 1 ? "+" : "{2,}");
        return out + fmt::format("{{{},{}}}", least, most);
    }

    std::set<size_t> ends(const std::string& over, size_t from) const {
        if (kind == Kind::character)
            return from < over.size() && set.find(over[from]) != set.npos ? std::set<size_t>{from + 1}
                                                                          : std::set<size_t>{};
        std::set<size_t> out;
        if (kind == Kind::choice) {
            for (const RandomRegex& item : items) out.merge(item.ends(over, from));
            return out;
        }
        std::set<size_t> now{from};
        for (size_t n = 0; n < (kind == Kind::sequence ? items.size() : std::min(most, over.size() + 3)); ++n) {
            if (kind == Kind::repeat && n >= least) out.insert(now.begin(), now.end());
            std::set<size_t> next;
            for (const size_t at : now) next.merge(items[kind == Kind::sequence ? n : 0].ends(over, at));
            now = std::move(next);
        }
        out.merge(now);
        return out;
    }
};

}  // namespace

TEST(Regex, RandomExpressionsMatchWhatTheSlowMatcherMatches) {
    Dice dice(1);
    int matches = 0, texts = 0;
    for (int i = 0; i < 600; ++i) {
        const RandomRegex tree = RandomRegex::make(dice, 4);
        const std::string pattern = tree.pattern();
        const auto made = Grammar::from_regex(pattern);
        ASSERT_TRUE(made.ok()) << pattern << ": " << made.error().message();
        for (int t = 0; t < 60; ++t) {
            std::string text;
            for (uint32_t n = dice.below(7); n > 0; --n) text += "abc1"[dice.below(4)];
            const bool expected = tree.ends(text, 0).contains(text.size());
            ASSERT_EQ((*made)->matches(text), expected) << pattern << " on '" << text << "'";
            matches += expected;
            ++texts;
        }
    }
    EXPECT_GT(matches, texts / 20);
    EXPECT_LT(matches, texts * 19 / 20);
}

TEST(Regex, Escapes) {
    EXPECT_TRUE(is_match("\\x41\\u0042\\u{1F600}\\ud83d\\ude00\\t\\.\\-\\/", "AB😀😀\t.-/"));
    EXPECT_TRUE(is_match("[\\]\\-x\\b]+", "]-x\b"));
    EXPECT_TRUE(is_match("[a-]+[-a]+", "a--a"));
    EXPECT_TRUE(is_match("\\cA\\0", std::string_view("\x01\0", 2)));
    EXPECT_TRUE(is_match("a{x}{2}", "a{x}}"));
    EXPECT_TRUE(is_match("\\p{Lu}\\P{L}", "Ä1"));
    EXPECT_FALSE(is_match("\\p{Lu}", "ä"));
    EXPECT_TRUE(is_match("日{2}[ぁ-ん]?", "日日の"));
    EXPECT_TRUE(is_match("(?<year>\\d{4})-(?P<m>[01]\\d)", "2026-11"));
    EXPECT_FALSE(is_match(".", "\n"));
}

// Constructs that dialects read differently are read in the way that satisfies all of them.
TEST(Regex, ClassesHoldWhatAllDialectsAgreeOn) {
    EXPECT_TRUE(is_match("\\d", "7"));
    EXPECT_FALSE(is_match("\\d", "٣"));
    EXPECT_FALSE(is_match("\\D", "٣"));
    EXPECT_FALSE(is_match("[^\\d]", "٣"));
    EXPECT_TRUE(is_match("[^\\D]", "7"));
    EXPECT_FALSE(is_match("\\w|\\W", "é"));
    EXPECT_FALSE(is_match("\\s|\\S", "\xC2\xA0"));
    EXPECT_TRUE(is_match("\\S\\W", "é-"));
}

TEST(Regex, AnchorsAnywhere) {
    EXPECT_TRUE(is_match("^ab$", "ab"));
    EXPECT_TRUE(is_match("^(a|b$)c?$", "ac"));
    EXPECT_TRUE(is_match("^(a|b$)c?$", "b"));
    EXPECT_FALSE(is_match("^(a|b$)c?$", "bc"));
    EXPECT_TRUE(is_match("(^a|b)+", "abb"));
    EXPECT_FALSE(is_match("(^a|b)+", "aba"));
    EXPECT_TRUE(is_match("\\Aab\\z|^c", "c"));
    EXPECT_NE(error_of("a^b"), "");
    EXPECT_EQ(error_of("a^b").find("no text of finite length satisfies"), 0u) << error_of("a^b");
}

TEST(Regex, ErrorsNameThePlace) {
    EXPECT_EQ(error_of("ab(?=c)"), "regular expression: character 3: look-ahead is not supported");
    EXPECT_EQ(error_of("é\\1"), "regular expression: character 2: back-references are not supported");
    EXPECT_EQ(error_of("(a"), "regular expression: character 1: '(' without ')'");
    EXPECT_EQ(error_of("a)"), "regular expression: character 2: ')' without '('");
    EXPECT_EQ(error_of("*"), "regular expression: character 1: nothing to repeat");
    EXPECT_EQ(error_of("a**"), "regular expression: character 3: nothing to repeat");
    EXPECT_EQ(error_of("a++"), "regular expression: character 2: possessive quantifiers are not supported");
    for (const char* bad : {"[a", "[]a]", "[b-a]", "[\\d-x", "\\", "\\q", "\\bx", "\\u12", "\\ud800", "a{3,2}", "(?i)a",
                            "(?>a)", "\\p{Greek}", "\\pL", "a{200000}", "[[:alpha:]]", "\xFF"})
        EXPECT_NE(error_of(bad), "") << bad;
}

// A hostile expression is an error in bounded time and memory.
TEST(Regex, BombsAreErrors) {
    std::string nested = "a";
    for (int i = 0; i < 10; ++i) nested = "(" + nested + "){10}";
    EXPECT_NE(error_of(nested), "");
    EXPECT_NE(error_of("[ab]*a[ab]{40}c"), "");  // 2^40 states
    EXPECT_NE(error_of("((a?){5000}){5000}"), "");
    EXPECT_NE(error_of(std::string(200'000, '(')), "");
    EXPECT_NE(error_of(std::string(300'000, 'a')), "");
    EXPECT_NE(error_of("(((((\\w{300}){300}){300}){300}){300})"), "");
    EXPECT_NE(error_of("(" + std::string(1000, '^') + "|" + "[ab]*a[ab]{30}" + ")b"), "");
}

TEST(Regex, MasksAreThoseOfTheSlowTwin) {
    Dice dice(2);
    const auto vocabulary = small_vocabulary();
    size_t steps = 0;
    for (const char* pattern :
         {"[a-z]+", "(ab|abc|ba)*", ".{1,40}", "\\{\"name\": \"[^\"\\\\]*\"\\}", "(true|false|null)",
          "-?\\d+(\\.\\d+)?", "[^a]{3,5}x", "日本|é+", "(a|b)*abb", "[\\s\\S]*"}) {
        const auto made = Grammar::from_regex(pattern);
        ASSERT_TRUE(made.ok()) << pattern;
        const auto tokens = std::make_shared<const GrammarTokens>(*made, vocabulary);
        for (int i = 0; i < 6; ++i) {
            const Walk walk = random_walk(tokens, dice, 12, 6, true);
            EXPECT_TRUE(!walk.complete || (*made)->matches(walk.text)) << pattern << ": " << walk.text;
            steps += walk.tokens;
        }
    }
    EXPECT_GT(steps, 100u);
}

TEST(Regex, RandomExpressionsHaveTheMasksOfTheSlowTwin) {
    Dice dice(3);
    int complete = 0;
    for (int i = 0; i < 60; ++i) {
        const std::string pattern = RandomRegex::make(dice, 4).pattern();
        const auto made = Grammar::from_regex(pattern);
        ASSERT_TRUE(made.ok()) << pattern;
        const auto tokens =
            std::make_shared<const GrammarTokens>(*made, small_vocabulary(), 20'000);  // drops cached masks
        const Walk walk = random_walk(tokens, dice, 8, 4, true);
        ASSERT_FALSE(HasFailure()) << pattern;
        EXPECT_TRUE(!walk.complete || (*made)->matches(walk.text)) << pattern << ": " << walk.text;
        complete += walk.complete;
    }
    EXPECT_GT(complete, 20);
}

TEST(Choices, OneOfThemAndNothingElse) {
    const std::vector<std::string> choices{"yes", "no", "no way", "日本"};
    const auto made = Grammar::from_choices(choices);
    ASSERT_TRUE(made.ok());
    for (const std::string& choice : choices) EXPECT_TRUE((*made)->matches(choice));
    for (const char* other : {"", "y", "yess", "no ", "Yes"}) EXPECT_FALSE((*made)->matches(other)) << other;
    Dice dice(4);
    const auto tokens = std::make_shared<const GrammarTokens>(*made, small_vocabulary());
    for (int i = 0; i < 20; ++i) {
        const Walk walk = random_walk(tokens, dice, 30, 0, true);
        EXPECT_TRUE(walk.complete);
        EXPECT_NE(std::find(choices.begin(), choices.end(), walk.text), choices.end()) << walk.text;
    }
    EXPECT_FALSE(Grammar::from_choices({}).ok());
    EXPECT_FALSE(Grammar::from_choices(std::vector<std::string>{"a", ""}).ok());
}

TEST(Matcher, ForcedBytesAreThoseThatMustFollow) {
    const auto made = Grammar::from_regex("(abcd|abce)f");
    ASSERT_TRUE(made.ok());
    GrammarMatcher matcher(std::make_shared<const GrammarTokens>(*made, small_vocabulary()));
    EXPECT_EQ(matcher.forced(), "abc");
    EXPECT_EQ(matcher.forced(2), "ab");
    EXPECT_TRUE(matcher.accept_bytes("abce"));
    EXPECT_FALSE(matcher.accept_bytes("g"));
    EXPECT_EQ(matcher.forced(), "f");
    EXPECT_FALSE(matcher.may_end());
    EXPECT_TRUE(matcher.accept_bytes("f"));
    EXPECT_TRUE(matcher.finished());
    EXPECT_FALSE(matcher.accept(1));
    EXPECT_FALSE(matcher.accept(-1));
    EXPECT_FALSE(matcher.accept(1 << 30));
}
