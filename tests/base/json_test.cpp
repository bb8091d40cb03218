#include "base/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

using namespace nibble;

TEST(Json, KeepsKeyOrderAndReadsNumbers) {
    auto json = parse_json(R"({"b": 1, "a": [1.5, null, true, "x"]})");
    ASSERT_TRUE(json.ok()) << json.error().message();
    EXPECT_EQ(json->dump(), R"({"b":1,"a":[1.5,null,true,"x"]})");
}

TEST(Json, DuplicateKeysAreRefusedAtEveryDepth) {
    EXPECT_EQ(parse_json(R"({"a":1,"a":2})").error().message(), "invalid JSON: duplicate key 'a'");
    EXPECT_FALSE(parse_json(R"([{"x":{"a":1,"b":{},"a":2}}])").ok());
    EXPECT_TRUE(parse_json(R"([{"a":1},{"a":2}])").ok());
}

TEST(Json, DepthIsLimited) {
    EXPECT_TRUE(parse_json(std::string(64, '[') + std::string(64, ']')).ok());
    EXPECT_EQ(parse_json(std::string(65, '[')).error().message(), "invalid JSON: nested deeper than 64 levels");
}

TEST(Json, EveryTruncationOfADocumentIsAnError) {
    const std::string text = R"({"a":[1,2.5e3,"\u00e9"],"b":{"c":false}})";
    ASSERT_TRUE(parse_json(text).ok());
    for (size_t n = 0; n < text.size(); ++n) EXPECT_FALSE(parse_json(text.substr(0, n)).ok()) << n;
}

TEST(Json, TextAfterAZeroByteIsNotIgnored) {
    EXPECT_EQ(parse_json(std::string("{}\0 and more", 12)).error().message(), "invalid JSON: zero byte at 2");
    EXPECT_FALSE(parse_json(std::string("{}\0", 3)).ok());
}

TEST(Json, BareInfinityNeedsTheOption) {
    const std::string text =
        R"({"time_step_limit": [0.0, Infinity], "x": -Infinity, "y": NaN, "z": "NaN \" Infinity"})";
    EXPECT_FALSE(parse_json(text).ok());
    auto json = parse_json(text, {.python_constants = true});
    ASSERT_TRUE(json.ok()) << json.error().message();
    EXPECT_EQ((*json)["time_step_limit"][1], std::numeric_limits<double>::infinity());
    EXPECT_EQ((*json)["x"], -std::numeric_limits<double>::infinity());
    EXPECT_TRUE(std::isnan((*json)["y"].get<double>()));
    EXPECT_EQ((*json)["z"], "NaN \" Infinity");
}

TEST(Json, DecimalsAsTextAreAsTheyStand) {
    const auto json = parse_json(R"({"a": 123456789012345678901234567890, "b": [1e3, 0.10, -7, 18446744073709551615]})",
                                 {.decimals_as_text = true});
    ASSERT_TRUE(json.ok());
    EXPECT_EQ(json->dump(), R"({"a":"123456789012345678901234567890","b":["1e3","0.10",-7,18446744073709551615]})");
    EXPECT_FALSE(parse_json("1e400", {.decimals_as_text = true}).ok());
}

TEST(Json, ErrorsNameLineAndColumn) {
    EXPECT_NE(parse_json("{\n \"a\": tru }").error().message().find("line 2"), std::string::npos);
}

TEST(Json, AnObjectWithManyKeysIsReadInLinearTime) {
    // Searching all keys for each new one would take an hour for these.
    std::string text = "{";
    for (int i = 0; i < 1'000'000; ++i) fmt::format_to(std::back_inserter(text), "{}\"key {}\":{}", i ? "," : "", i, i);
    const auto json = parse_json(text + "}");
    ASSERT_TRUE(json.ok()) << json.error().message();
    EXPECT_EQ(json->size(), 1'000'000u);
    EXPECT_EQ(json->begin().key(), "key 0");
    EXPECT_EQ(std::prev(json->end()).value(), 999'999);
    const auto twice = parse_json(text + R"(,"key 77":1})");
    ASSERT_FALSE(twice.ok());
    EXPECT_EQ(twice.error().message(), "invalid JSON: duplicate key 'key 77'");
}

TEST(Json, TheNumberOfValuesIsLimited) {
    std::string text = "[";
    for (int i = 0; i < 17'000'000; ++i) text += "1,";
    const auto json = parse_json(text + "1]");
    ASSERT_FALSE(json.ok());
    EXPECT_EQ(json.error().message(), "invalid JSON: over 16777216 values");
}
