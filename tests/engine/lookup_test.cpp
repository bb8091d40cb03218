#include "engine/lookup.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

TEST(PromptLookup, DraftsTheTokensThatFollowedTheSameTokensBefore) {
    PromptLookup lookup(8);
    const std::vector<int32_t> text{1, 2, 3, 4, 5, 6, 9, 2, 3};
    EXPECT_EQ(lookup.draft(text, 8), (std::vector<int32_t>{4, 5, 6, 9}));
    EXPECT_EQ(lookup.draft(text, 2), (std::vector<int32_t>{4, 5}));
    EXPECT_TRUE(lookup.draft(text, 0).empty());
    EXPECT_TRUE(PromptLookup(8).draft(std::vector<int32_t>{1, 2, 3, 4}, 8).empty());
    EXPECT_TRUE(PromptLookup(8).draft(std::vector<int32_t>{1}, 8).empty());
}

TEST(PromptLookup, TheLongestAndThenTheLatestMatchWins) {
    PromptLookup lookup(4);
    EXPECT_EQ(lookup.draft(std::vector<int32_t>{1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3}, 1), std::vector<int32_t>{7});
    PromptLookup later(4);
    EXPECT_EQ(later.draft(std::vector<int32_t>{5, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3}, 1), std::vector<int32_t>{8});
}

TEST(PromptLookup, LoopsAreDraftedFurtherAndRejectedDraftsGetShorter) {
    PromptLookup lookup(8);
    std::vector<int32_t> text{1, 2, 1, 2, 1};
    EXPECT_EQ(lookup.draft(text, 8), (std::vector<int32_t>{2, 1, 2, 1}));
    lookup.learn(4, 4);
    EXPECT_EQ(lookup.draft(text, 8).size(), 8u);
    lookup.learn(8, 0);
    EXPECT_EQ(lookup.draft(text, 8).size(), 1u);
    text.push_back(2);
    EXPECT_EQ(lookup.draft(text, 8), std::vector<int32_t>{1});
}

// Expected text is used as if it had followed the prompt: from the first token on, and before text of an earlier turn.
TEST(PromptLookup, SearchesTheExpectedText) {
    const std::vector<int32_t> prompt{7, 8, 9, 1, 1, 7, 8, 9}, expected{20, 21, 22, 23, 24, 25};
    PromptLookup lookup(8, prompt, expected);
    std::vector<int32_t> text = prompt;
    EXPECT_EQ(lookup.draft(text, 3), (std::vector<int32_t>{20, 21, 22}));
    text.insert(text.end(), {20, 21, 50});  // one token differs
    EXPECT_TRUE(lookup.draft(text, 3).empty());
    lookup.learn(3, 0);  // about a draft of another source
    text.insert(text.end(), {22, 23});
    EXPECT_EQ(lookup.draft(text, 4), (std::vector<int32_t>{24, 25, 20, 21}));
    EXPECT_EQ(PromptLookup(8, prompt).draft(prompt, 2), (std::vector<int32_t>{1, 1}));
}

}  // namespace
}  // namespace nibble
