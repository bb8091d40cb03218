#include "page/svg.h"

#include "support/markup_check.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

namespace nibble {
namespace {

std::string as_page(std::string_view svg) { return fmt::format("<!DOCTYPE html>{}", svg); }

size_t count(std::string_view page, std::string_view text) {
    size_t n = 0;
    for (size_t at = page.find(text); at != std::string_view::npos; at = page.find(text, at + text.size())) ++n;
    return n;
}

TEST(EscapeHtml, EverySingleByteIsItselfAnEntityOrTheReplacement) {
    for (int b = 0; b < 256; ++b) {
        const std::string in(1, static_cast<char>(b));
        const std::string out = escape_html(in);
        if (b >= 0x80 || b == 0x7F || (b < 0x20 && b != '\n' && b != '\t'))
            EXPECT_EQ(out, "\uFFFD") << b;
        else if (std::string_view("&<>\"'").find(in) != std::string_view::npos)
            EXPECT_TRUE(out[0] == '&' && out.back() == ';') << b;
        else
            EXPECT_EQ(out, in) << b;
    }
}

TEST(EscapeHtml, AnyTwoOrThreeBytesGiveUtf8WithoutMarkup) {
    std::mt19937 random(7);
    for (int i = 0; i < 200'000; ++i) {
        std::string in(2 + i % 4, '\0');
        for (char& c : in) c = static_cast<char>(random() % 3 ? 0x80 + random() % 128 : random() % 128);
        const std::string out = escape_html(in);
        ASSERT_TRUE(test::is_utf8(out));
        ASSERT_EQ(out.find_first_of("<>\"'"), std::string::npos);
        const auto special = [](unsigned char c) {
            return c < 0x20 || c == 0x7F || c == '&' || c == '<' || c == '>' || c == '"' || c == '\'';
        };
        if (test::is_utf8(in) && std::ranges::none_of(in, special)) {
            ASSERT_EQ(out, in);
        }
    }
}

TEST(EscapeHtml, WholeLettersOfEveryLengthStay) { EXPECT_EQ(escape_html("aéΩ€😀"), "aéΩ€😀"); }

TEST(ShortNumber, HasNoTrailingZerosAndNoNegativeZero) {
    EXPECT_EQ(short_number(1.5), "1.5");
    EXPECT_EQ(short_number(2.0), "2");
    EXPECT_EQ(short_number(100), "100");
    EXPECT_EQ(short_number(-0.001), "0");
    EXPECT_EQ(short_number(0.125, 3), "0.125");
    EXPECT_EQ(short_number(120, 0), "120");
    EXPECT_EQ(short_number(INFINITY), "∞");
    EXPECT_EQ(short_number(NAN), "–");
}

TEST(NiceTicks, LieInsideAtEqualRoundDistances) {
    std::mt19937 random(3);
    std::uniform_real_distribution<double> exponent(-6, 6), unit(-1, 1);
    for (int i = 0; i < 10'000; ++i) {
        const double span = std::pow(10, exponent(random)), low = unit(random) * span * 3, high = low + span;
        const int want = 3 + i % 10;
        const std::vector<Tick> ticks = nice_ticks(low, high, want);
        ASSERT_GE(ticks.size(), 1u) << low << ' ' << high;
        ASSERT_LE(int(ticks.size()), want + 1);
        for (size_t k = 0; k < ticks.size(); ++k) {
            ASSERT_GE(ticks[k].at, low - 1e-6 * span);
            ASSERT_LE(ticks[k].at, high + 1e-6 * span);
            ASSERT_NEAR(std::stod(ticks[k].label), ticks[k].at, 1e-6 * span) << "the label says where the tick is";
        }
    }
}

TEST(NiceTicks, NothingForRangesThatAreNone) {
    EXPECT_TRUE(nice_ticks(1, 1, 5).empty());
    EXPECT_TRUE(nice_ticks(2, 1, 5).empty());
    EXPECT_TRUE(nice_ticks(NAN, 1, 5).empty());
    EXPECT_TRUE(nice_ticks(0, INFINITY, 5).empty());
}

TEST(NiceTicks, LayersHaveWholeNumbers) {
    for (const Tick& t : nice_ticks(0, 2.6, 14, 1)) EXPECT_EQ(t.at, std::round(t.at));
}

TEST(LineChart, AMissingPointBreaksTheLineAndHasNoMarker) {
    LineChart chart{.title = "t", .x_label = "x", .y_label = "y", .x_high = 3, .y_high = 10};
    chart.series = {{"s", 0, {{0, 1, 1, 1, "a"}, {1, 2, 2, 2, "b"}, {2, NAN, NAN, NAN, "gone"}, {3, 4, 4, 4, "c"}}}};
    const std::string svg = draw(chart);
    EXPECT_EQ(count(svg, "<title>"), 3u);
    EXPECT_EQ(svg.find("gone"), std::string::npos);
    const size_t line = svg.find("class=\"line\" d=\"");
    const std::string path = svg.substr(line, svg.find("/>", line) - line);
    EXPECT_EQ(count(path, "M"), 2u);
    EXPECT_EQ(count(path, "L"), 1u);
    EXPECT_EQ(svg.find("class=\"band"), std::string::npos) << "single values have no band";
    EXPECT_EQ(test::check_markup(as_page(svg)).error, "");
}

TEST(LineChart, EightSeriesHaveEightDifferentMarkers) {
    std::set<std::string> shapes;
    for (int style = 0; style < series_styles; ++style) {
        std::string icon = marker_icon(style);
        EXPECT_EQ(test::check_markup(as_page(icon)).error, "");
        shapes.insert(icon.substr(icon.find(" d=\"")));
    }
    EXPECT_EQ(shapes.size(), size_t(series_styles));
    EXPECT_EQ(marker_icon(series_styles), marker_icon(0));
}

TEST(LineChart, TicksMayBeGiven) {
    LineChart chart{.x_high = 8, .y_high = 10, .series = {{"a", 0, {{0, 1, 1, 1, ""}, {8, 2, 2, 2, ""}}}}};
    EXPECT_EQ(draw(chart).find(">256<"), std::string::npos);
    chart.x_ticks = {{0, "1"}, {8, "256"}};
    EXPECT_NE(draw(chart).find(">256<"), std::string::npos);
    EXPECT_EQ(draw(chart).find(">7<"), std::string::npos) << "no other ticks";
}

TEST(LineChart, RangesGetABand) {
    LineChart chart{.x_high = 2, .y_high = 10};
    chart.series = {{"s", 1, {{0, 1, 2, 3, ""}, {1, 2, 3, 5, ""}}}, {"lone", 2, {{1, 1, 2, 3, ""}}}};
    EXPECT_EQ(count(draw(chart), "class=\"band"), 2u);
}

TEST(BarChart, ARareValueIsVisibleAndAnAbsentOneIsNot) {
    BarChart chart{.x_high = 3, .bars = {{0, 1, 1.0, "all"}, {1, 2, 1e-9, "rare"}, {2, 3, 0, "never"}}};
    const std::string svg = draw(chart);
    std::vector<double> heights;
    for (const test::MarkupTag& tag : test::check_markup(as_page(svg)).tags)
        if (tag.name == "rect") heights.push_back(std::stod(tag.attribute("height")));
    ASSERT_EQ(heights.size(), 3u);
    EXPECT_GT(heights[0], 100);
    EXPECT_GT(heights[1], 0.5);
    EXPECT_EQ(heights[2], 0);
}

TEST(BarChart, DrawsWithoutBarsOrRange) {
    EXPECT_EQ(test::check_markup(as_page(draw(BarChart{}))).error, "");
    EXPECT_EQ(test::check_markup(as_page(draw(BarChart{.x_low = 1, .x_high = 1}))).error, "");
    EXPECT_EQ(draw(BarChart{.x_low = 1, .x_high = 1}).find("nan"), std::string::npos);
}

TEST(HeatStrip, LargerValuesAreNeverPaler) {
    HeatStrip strip{.title = "s"};
    for (double v : {0.0, 1.0, 10.0, 1e6, 1e9}) strip.cells.push_back({v, ""});
    double previous = -1;
    for (const test::MarkupTag& tag : test::check_markup(as_page(draw(strip))).tags)
        if (tag.name == "rect") {
            EXPECT_GT(std::stod(tag.attribute("fill-opacity")), previous);
            previous = std::stod(tag.attribute("fill-opacity"));
        }
    EXPECT_EQ(previous, 1);
}

TEST(Charts, TitlesLabelsAndTooltipsAreEscaped) {
    const std::string bad = "<b>\"&";
    LineChart line{.title = bad, .x_label = bad, .y_label = bad, .series = {{bad, 0, {{0, 0, 0.5, 1, bad}}}}};
    BarChart bars{.title = bad, .x_label = bad, .y_label = bad, .bars = {{0, 1, 1, bad}}, .x_ticks = {{0, bad}}};
    HeatStrip strip{.title = bad, .x_label = bad, .cells = {{1, bad}}, .x_ticks = {{0, bad}}};
    for (const std::string& svg : {draw(line), draw(bars), draw(strip)}) {
        EXPECT_EQ(svg.find("<b>"), std::string::npos);
        EXPECT_EQ(test::check_markup(as_page(svg)).error, "");
    }
}

}  // namespace
}  // namespace nibble
