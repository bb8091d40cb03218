#include "jobs/formats_text.h"
#include "jobs/formats_json.h"

#include <gtest/gtest.h>

#include <array>
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
    EXPECT_EQ(names, 18u);
}

TEST(FormatsText, ShowsTheBitsOfANumber) {
    const float numbers[] = {0.1f};
    EXPECT_NE(numbers_text(numbers).find(
                  "e4m3  0 0011 101                          0x1D            0.1015625     +0.001562      +1.56 %"),
              std::string::npos)
        << numbers_text(numbers);
}

TEST(FormatsText, ShowsEveryStepOfABlock) {
    const float numbers[] = {0.1f, -3.0f, 1.5f};
    const auto text = quantized_text("nvfp4", numbers, Arithmetic::reciprocal);
    ASSERT_TRUE(text.ok());
    EXPECT_NE(text->find("E4M3 0x7E = 448"), std::string::npos) << *text;
    EXPECT_NE(text->find("-6    0xF             -3            +0"), std::string::npos) << *text;
}

TEST(FormatsText, RefusesValuesWithoutAScale) {
    const float infinite[] = {INFINITY};
    EXPECT_FALSE(quantized_text("nvfp4", infinite, Arithmetic::reciprocal).ok());
    const std::vector<float> many(17, 1.0f);
    EXPECT_EQ(quantized_text("nvfp4", many, Arithmetic::reciprocal).error().message(),
              "nvfp4 has blocks of 16 numbers; 17 were given");
    EXPECT_FALSE(format_text("fp3").ok());
}

TEST(FormatsText, FloatsShowTheirBiasAndFormula) {
    EXPECT_NE(format_text("e4m3")->find("bias 7"), std::string::npos);
    EXPECT_NE(format_text("e4m3")->find("2^(e - 7) * (1 + m/8)"), std::string::npos) << *format_text("e4m3");
    EXPECT_NE(format_text("e4m3")->find("0.001953"), std::string::npos);
    EXPECT_NE(overview_text().find("tf32"), std::string::npos);
}

// Values of FP6 by OCP MX 1.0: largest, smallest, ties to even, saturation; TF32 keeps ten bits.
TEST(FormatsText, Fp6AndTf32Round) {
    const auto line = [](std::string_view name, float x) {
        return *quantized_text(name, std::array{x}, Arithmetic::reciprocal);
    };
    EXPECT_NE(line("e2m3", 100.0f).find("0x1F                  7.5"), std::string::npos) << line("e2m3", 100.0f);
    EXPECT_NE(line("e2m3", 0.1875f).find("0x02                 0.25"), std::string::npos) << line("e2m3", 0.1875f);
    EXPECT_NE(line("e3m2", -30.0f).find("0x3F                  -28"), std::string::npos) << line("e3m2", -30.0f);
    EXPECT_NE(line("e3m2", 0.0625f).find("0x01               0.0625"), std::string::npos) << line("e3m2", 0.0625f);
    EXPECT_NE(line("tf32", 1.0f + 0x1p-11f).find("              1 "), std::string::npos)
        << line("tf32", 1.0f + 0x1p-11f);
    EXPECT_NE(line("tf32", 1.0f + 0x1p-10f).find("1.0009766"), std::string::npos);
}

TEST(FormatsText, ABlockIsPartOfATensor) {
    const float numbers[] = {0.1f, -3.0f, 1.5f};
    const auto text = quantized_text("nvfp4", numbers, Arithmetic::true_division, 8.0f);
    ASSERT_TRUE(text.ok());
    // 3 / (6 * 8/2688) = 168, which E4M3 rounds to 160 (ties to even between 160 and 176).
    EXPECT_NE(text->find("168 -> E4M3 0x72 = 160"), std::string::npos) << *text;
    EXPECT_NE(text->find("amax/1536"), std::string::npos);
    EXPECT_NE(text->find("chosen: "), std::string::npos);
    EXPECT_EQ(quantized_text("nvfp4", numbers, Arithmetic::reciprocal, 1.0f).error().message(),
              "--amax 1: the tensor's largest magnitude is at least that of these numbers, 3");
    EXPECT_FALSE(quantized_text("mxfp4", numbers, Arithmetic::reciprocal, 8.0f).ok());
    EXPECT_FALSE(quantized_text("e4m3", numbers, Arithmetic::reciprocal, 8.0f).ok());
}

TEST(FormatsText, FourOverSixChoosesTheSmallerLoss) {
    // With its largest number mapped to the element 4, the first block is exact; with it mapped to 6, the second is.
    const float numbers[] = {4.0f, 3.0f, 2.0f, -4.0f};
    EXPECT_NE(quantized_text("nvfp4", numbers, Arithmetic::true_division)->find("chosen: four"), std::string::npos);
    const float six[] = {6.0f, 3.0f, 1.5f, -6.0f};
    EXPECT_NE(quantized_text("nvfp4", six, Arithmetic::true_division)->find("chosen: six"), std::string::npos);
}

// JSON contains the same as the text: every format of the overview, every value, every step.
TEST(FormatsJson, ContainsTheValuesOfTheText) {
    const Json overview = overview_json();
    EXPECT_EQ(overview["elements"].size() + overview["blocks"].size(), 18u);
    for (const char* kind : {"elements", "blocks"})
        for (const Json& f : overview[kind]) {
            const std::string name = f["name"];
            const auto alone = format_json(name);
            ASSERT_TRUE(alone.ok()) << name;
            EXPECT_EQ((*alone)["name"], name);
        }
    const auto e2m1 = format_json("e2m1");
    EXPECT_EQ((*e2m1)["values"], Json::parse("[0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]"));
    EXPECT_EQ((*format_json("e4m3"))["values"][0x7F], "nan");
    EXPECT_FALSE(format_json("fp3").ok());
    const float numbers[] = {0.1f, -3.0f, 1.5f};
    EXPECT_EQ(numbers_json(numbers)[0]["formats"]["e4m3"]["code"], 0x1D);
    for (const Json& b : overview["blocks"]) {
        const auto trace = quantized_json(b["name"].get<std::string>(), numbers, Arithmetic::reciprocal, {});
        ASSERT_TRUE(trace.ok());
        EXPECT_FALSE((*trace)["scales"].empty());
        for (const Json& n : (*trace)["numbers"])
            EXPECT_EQ(n["error"].get<double>(), n["value"].get<double>() - n["number"].get<double>());
    }
    EXPECT_EQ((*quantized_json("nvfp4", numbers, Arithmetic::reciprocal, 8.0f))["scales"]["tensor_scale"].get<float>(),
              8.0f * (1.0f / 2688));
    EXPECT_FALSE(quantized_json("mxfp4", numbers, Arithmetic::reciprocal, 8.0f).ok());
}
