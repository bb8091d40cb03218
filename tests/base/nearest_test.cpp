#include "base/nearest.h"

#include <gtest/gtest.h>

#include <vector>

using namespace nibble;

TEST(EditDistance, CountsInsertionsDeletionsChangesAndSwaps) {
    EXPECT_EQ(edit_distance("", ""), 0u);
    EXPECT_EQ(edit_distance("", "abc"), 3u);
    EXPECT_EQ(edit_distance("verify", "Verify"), 0u);
    EXPECT_EQ(edit_distance("quantise", "quantize"), 1u);
    EXPECT_EQ(edit_distance("qauntize", "quantize"), 1u);
    EXPECT_EQ(edit_distance("quantiz", "quantize"), 1u);
    EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
    EXPECT_EQ(edit_distance("ca", "abc"), 3u) << "no letter is moved twice";
}

TEST(NearestWord, IsTheNearestOrNone) {
    const std::vector<std::string> words = {"quantize", "convert", "chat", "eval", "-o"};
    EXPECT_EQ(nearest_word("quantise", words), "quantize");
    EXPECT_EQ(nearest_word("QUANTIZE", words), "quantize");
    EXPECT_EQ(nearest_word("chst", words), "chat");
    EXPECT_EQ(nearest_word("frobnicate", words), "");
    EXPECT_EQ(nearest_word("", words), "");
    EXPECT_EQ(nearest_word("xy", words), "") << "a change of every letter is no misspelling";
    EXPECT_EQ(nearest_word(std::string(100'000, 'q'), words), "");
    const std::vector<std::string> flags{"--temperature", "--help", "-h"};
    EXPECT_EQ(nearest_word("--temp", flags), "--temperature") << "an abbreviation, though --help is nearer";
    EXPECT_EQ(nearest_word("-n", flags), "") << "only the dash is the same";
    EXPECT_EQ(did_you_mean("evl", words), "; did you mean 'eval'?");
    EXPECT_EQ(did_you_mean("frobnicate", words), "");
}
