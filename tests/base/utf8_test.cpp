#include "base/utf8.h"

#include "base/error.h"

#include <gtest/gtest.h>

using namespace nibble;

namespace {

// One character per code point that is a scalar value.
std::string every_character() {
    std::string text;
    for (char32_t c = 0; c < 0x110000; ++c)
        if (c < 0xD800 || c > 0xDFFF) utf8_append(text, c);
    return text;
}

}  // namespace

TEST(Utf8, EveryScalarValueComesBack) {
    const std::string text = every_character();
    EXPECT_TRUE(utf8_valid(text));
    size_t at = 0;
    for (char32_t c = 0; c < 0x110000; ++c) {
        if (c >= 0xD800 && c <= 0xDFFF) continue;
        const Utf8Step step = utf8_step(text, at);
        ASSERT_TRUE(step.valid && step.code == c) << uint32_t(c);
        at += step.size;
    }
    EXPECT_EQ(at, text.size());
}

TEST(Utf8, OverlongFormsSurrogatesAndWhatIsTooLargeAreRefused) {
    for (const std::string_view text : {"\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF", "\xED\xA0\x80",
                                        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\x80", "\xFF", "a\xE2\x82"})
        EXPECT_FALSE(utf8_valid(text));
}

TEST(Printable, ControlCharactersAndInvalidBytesAreSpelledOut) {
    EXPECT_EQ(printable("a\nb\r\tc"), "a\\nb\\r\\tc");
    EXPECT_EQ(printable(std::string_view("\0\x1B[31m\x7F", 7)), "\\u{0}\\u{1b}[31m\\u{7f}");
    EXPECT_EQ(printable("\u0085\u009B\u2028\u202E\u2066"), "\\u{85}\\u{9b}\\u{2028}\\u{202e}\\u{2066}");
    EXPECT_EQ(printable("\xC3(\xFF"), "\\xc3(\\xff");
    EXPECT_EQ(printable("'naïve' → \\n 漢 😀"), "'naïve' → \\n 漢 😀");
}

TEST(Printable, EveryCharacterTwiceIsOnce) {
    const std::string once = printable(every_character());
    EXPECT_TRUE(utf8_valid(once));
    EXPECT_EQ(printable(once), once);
    for (const unsigned char c : once) ASSERT_TRUE(c >= 0x20 && c != 0x7F);
}

TEST(Printable, LongTextKeepsItsEnds) {
    for (size_t length = 0; length < 60; ++length)
        for (size_t most = 0; most < 70; ++most) {
            std::string text;
            for (size_t i = 0; i < length; ++i) text += i % 3 ? "é" : "a";
            const std::string shown = printable(text, most);
            ASSERT_TRUE(utf8_valid(shown));
            ASSERT_TRUE(shown == text || shown.size() <= std::max<size_t>(most, 7)) << length << " " << most;
            ASSERT_EQ(shown == text, text.size() <= most);
        }
    EXPECT_EQ(printable("abcdefghijklmnopqrstuvwxyz", 17), "abcde [...] vwxyz");
}

TEST(Error, IsOneShortLineForAnyFile) {
    const Error error = fail("key '{}'", "a\nb\x1B[2J").within("folder\r\nname");
    EXPECT_EQ(error.message(), "folder\\r\\nname: key 'a\\nb\\u{1b}[2J'");
    const Error longer = fail("{}: is unknown", std::string(100'000, 'x')).within("model.safetensors");
    EXPECT_LE(longer.message().size(), Error::most_bytes);
    EXPECT_TRUE(longer.message().starts_with("model.safetensors: xxx"));
    EXPECT_TRUE(longer.message().ends_with("xxx: is unknown"));
}

TEST(Utf8, ChecksNameTheFirstWrongByteAndMarksAreTakenOffTheFrontAlone) {
    EXPECT_TRUE(check_utf8("").ok() && check_utf8(every_character()).ok());
    EXPECT_EQ(check_utf8("h\xC3\xA4\xFFx").error().message(), "byte 3 is not UTF-8");
    EXPECT_EQ(check_utf8("cut \xE2\x82").error().message(), "byte 4 is not UTF-8");
    EXPECT_EQ(without_byte_order_mark("\xEF\xBB\xBF"
                                      "a\xEF\xBB\xBF"),
              "a\xEF\xBB\xBF");
    EXPECT_EQ(without_byte_order_mark("\xEF\xBB"), "\xEF\xBB");
    EXPECT_EQ(without_byte_order_mark(""), "");
}
