#include "eval/windows.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

TEST(ChunkedWindows, CountTheSecondHalfOfWholePieces) {
    const auto windows = chunked_windows(29, 8, false);
    ASSERT_TRUE(windows.ok());
    EXPECT_EQ(*windows, (std::vector<Window>{{0, 8, 5}, {8, 16, 13}, {16, 24, 21}}));
    const auto with_bos = chunked_windows(16, 8, true);
    ASSERT_TRUE(with_bos.ok());
    EXPECT_EQ(*with_bos, (std::vector<Window>{{0, 8, 5, true}, {8, 16, 13, true}}));
    const std::vector<int32_t> text{9, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14, 15, 16};
    EXPECT_EQ(tokens_of((*with_bos)[1], text, 99), (std::vector<int32_t>{99, 10, 11, 12, 13, 14, 15, 16}));
    EXPECT_EQ(tokens_of((*windows)[1], text, 99), (std::vector<int32_t>{8, 10, 11, 12, 13, 14, 15, 16}));
}

TEST(ChunkedWindows, TooLittleTextIsAnErrorThatSaysHowMuch) {
    const auto windows = chunked_windows(15, 8, false);
    ASSERT_FALSE(windows.ok());
    EXPECT_EQ(windows.error().message(), "the text has 15 tokens; perplexity with a context of 8 needs at least 16");
    EXPECT_FALSE(chunked_windows(100, 3, false).ok());
}

TEST(SlidingWindows, EveryTokenButTheFirstCountsOnceInTheFirstWindowThatHoldsIt) {
    for (int64_t tokens = 2; tokens < 40; ++tokens)
        for (int64_t context = 2; context < 12; ++context)
            for (int64_t stride = 1; stride < context; ++stride) {
                const auto windows = sliding_windows(tokens, context, stride);
                ASSERT_TRUE(windows.ok());
                int64_t next = 1;
                for (size_t i = 0; i < windows->size(); ++i) {
                    const Window& w = (*windows)[i];
                    EXPECT_EQ(w.begin, int64_t(i) * stride);
                    EXPECT_EQ(w.end, std::min(w.begin + context, tokens));
                    EXPECT_EQ(w.counted, next);
                    EXPECT_GT(w.counted, w.begin);
                    EXPECT_GT(w.end, w.counted);
                    next = w.end;
                }
                EXPECT_EQ(next, tokens);
            }
    EXPECT_FALSE(sliding_windows(10, 4, 4).ok());
    EXPECT_FALSE(sliding_windows(10, 4, 0).ok());
    EXPECT_FALSE(sliding_windows(1, 4, 2).ok());
}

}  // namespace
}  // namespace nibble
