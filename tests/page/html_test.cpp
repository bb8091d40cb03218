#include "page/html.h"

#include "support/markup_check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace nibble {
namespace {

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

TEST(Html, APageHoldsItsDocument) {
    const std::string bad = "</script><!--<script>alert(1)</script>\u2028]]>&amp;'\"\x01";
    const Json data{{"name", bad}, {bad, {1, 2.5, nullptr, true}}, {"none", std::nan("")}};
    const std::string page = document(bad, "search", data, 15);
    EXPECT_EQ(test::check_markup(page).error, "");
    const Json read = test::page_data(page);
    EXPECT_EQ(read["name"], bad);
    EXPECT_EQ(read[bad], data[bad]);
    EXPECT_TRUE(read["none"].is_null());
    EXPECT_NE(page.find("<meta http-equiv=\"refresh\" content=\"15\">"), std::string::npos);
    EXPECT_NE(page.find("views.search = "), std::string::npos);
    EXPECT_EQ(page.find("views.evaluation = "), std::string::npos) << "a page has its own view only";
    EXPECT_EQ(document("a", "search", data).find("refresh"), std::string::npos);
    EXPECT_TRUE(test::is_utf8(document("\xFF", "search", {{"name", "\xFF"}})));
}

TEST(Html, NumbersAreRoundedToSixDigits) {
    EXPECT_EQ(rounded(1.0 / 3).dump(), "0.333333");
    EXPECT_EQ(rounded(123456789).dump(), "123457000.0");
    EXPECT_TRUE(rounded(INFINITY).is_null());
    EXPECT_TRUE(rounded(std::nan("")).is_null());
}

}  // namespace
}  // namespace nibble
