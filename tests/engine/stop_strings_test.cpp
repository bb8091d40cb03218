#include "engine/stop_strings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace nibble {
namespace {

// Implements the definition: adds characters one by one until the text ends with a stop string, and takes the longest.
std::pair<std::string, bool> cut(const std::string& text, const std::vector<std::string>& stops) {
    for (size_t end = 1; end <= text.size(); ++end) {
        size_t longest = 0;
        for (const std::string& s : stops)
            if (text.substr(0, end).ends_with(s)) longest = std::max(longest, s.size());
        if (longest > 0) return {text.substr(0, end - longest), true};
    }
    return {text, false};
}

TEST(StopStrings, AnyPiecesOfTheTextGiveTheSameAnswer) {
    std::mt19937 rng(1);
    const auto letters = [&](int most) {
        std::string s;
        for (int n = 1 + int(rng() % uint32_t(most)); n > 0; --n) s += "ab"[rng() % 2];
        return s;
    };
    for (int trial = 0; trial < 5000; ++trial) {
        const std::string text = letters(24);
        std::vector<std::string> stops;
        for (int i = int(rng() % 3); i >= 0; --i) stops.push_back(letters(6));
        StopStrings matcher(stops);
        std::string out;
        for (size_t at = 0; at < text.size();) {
            const size_t n = rng() % 4;
            out += matcher.push(std::string_view(text).substr(at, n));
            const auto [want, found] = cut(text.substr(0, std::min(text.size(), at + n)), stops);
            ASSERT_EQ(matcher.found(), found);
            ASSERT_TRUE(want.starts_with(out)) << text;
            at += n;
        }
        out += matcher.finish();
        EXPECT_EQ(out, cut(text, stops).first) << text;
    }
}

TEST(StopStrings, HoldsBackOnlyPrefixesOfStopStrings) {
    StopStrings matcher({"", "\nUser:"});
    EXPECT_EQ(matcher.push("Hello\n"), "Hello");
    EXPECT_EQ(matcher.push("Us"), "");
    EXPECT_EQ(matcher.push("ed"), "\nUsed");
    EXPECT_EQ(matcher.push("!\nUser: x"), "!");
    EXPECT_TRUE(matcher.found());
    EXPECT_EQ(matcher.push("more"), "");
    EXPECT_EQ(matcher.finish(), "");
}

}  // namespace
}  // namespace nibble
