#include "cli/formats_text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

using namespace nibble;

TEST(FormatsText, EveryNameOfTheOverviewIsAccepted) {
    const std::string choices = format_choices();
    size_t names = 0;
    for (size_t begin = 0; begin < choices.size();) {
        const size_t end = std::min(choices.find(' ', begin), choices.size());
        const std::string name = choices.substr(begin, end - begin);
        EXPECT_TRUE(is_format_name(name)) << name;
        EXPECT_TRUE(format_text(name).ok()) << name;
        EXPECT_NE(overview_text().find(name), std::string::npos) << name;
        const float numbers[] = {0.1f, -3.0f};
        EXPECT_TRUE(quantized_text(name, numbers, Arithmetic::reciprocal).ok()) << name;
        begin = end + 1;
        ++names;
    }
    EXPECT_EQ(names, 14u);
}

TEST(FormatsText, ShowsTheBitsOfANumber) {
    const float numbers[] = {0.1f};
    EXPECT_NE(numbers_text(numbers).find(
                  "e4m3  0 0011 101                          0x1D            0.1015625     +0.001562      +1.56 %"),
              std::string::npos)
        << numbers_text(numbers);
}

TEST(FormatsText, WalksThroughABlock) {
    const float numbers[] = {0.1f, -3.0f, 1.5f};
    const auto text = quantized_text("nvfp4", numbers, Arithmetic::reciprocal);
    ASSERT_TRUE(text.ok());
    EXPECT_NE(text->find("E4M3 0x7E = 448"), std::string::npos) << *text;
    EXPECT_NE(text->find("0xF           -6             -3            +0"), std::string::npos) << *text;
}

TEST(FormatsText, RefusesWhatHasNoScale) {
    const float infinite[] = {INFINITY};
    EXPECT_FALSE(quantized_text("nvfp4", infinite, Arithmetic::reciprocal).ok());
    const std::vector<float> many(17, 1.0f);
    EXPECT_EQ(quantized_text("nvfp4", many, Arithmetic::reciprocal).error().message(),
              "nvfp4 has blocks of 16 numbers; 17 were given");
    EXPECT_FALSE(format_text("fp3").ok());
}
