#include "base/fields.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <functional>

namespace nibble {
namespace {

constexpr std::string_view ignorable_names[] = {"dropout"};
constexpr FieldPolicy quoting{.unknown = "changes the model", .ignorable = ignorable_names, .shows_values = true};

const Json& sample() {
    static const Json json = *parse_json(
        R"({"n": 3, "big": 300, "minus": -1, "half": 0.5, "text": "t", "on": true, "list": [1, 2], "mixed": [1, "2"],)"
        R"( "none": null, "inner": {"a": 1}})");
    return json;
}

template <class T>
Status read_as(Fields& f, std::string_view key) {
    T value{};
    return f.read(key, value);
}
template <class T>
Status need_as(Fields& f, std::string_view key) {
    T value{};
    return f.need(key, value);
}

struct FieldCase {
    std::string name;
    std::function<Status(Fields&)> use;
    std::string plain;    // the message without subject and values; empty: no error
    std::string quoting;  // with both
};

class FieldCases : public testing::TestWithParam<FieldCase> {};

TEST_P(FieldCases, ErrorsNameTheFault) {
    Fields plain(sample()), full(sample(), "config.json", quoting);
    const auto text = [](const Status& status) { return status.ok() ? std::string() : status.error().message(); };
    EXPECT_EQ(text(GetParam().use(plain)), GetParam().plain);
    EXPECT_EQ(text(GetParam().use(full)), GetParam().quoting);
}

std::vector<FieldCase> field_cases() {
    const auto same = [](std::string name, auto use) { return FieldCase{std::move(name), use, "", ""}; };
    return {
        same("a_number_is_read", [](Fields& f) { return read_as<int64_t>(f, "n"); }),
        {"another_type", [](Fields& f) { return read_as<bool>(f, "n"); }, "'n': expected true or false",
         "config.json: 'n' is 3: expected true or false"},
        {"a_number_for_text", [](Fields& f) { return read_as<std::string>(f, "n"); }, "'n': expected a string",
         "config.json: 'n' is 3: expected a string"},
        {"text_for_a_number", [](Fields& f) { return read_as<double>(f, "text"); }, "'text': expected a number",
         "config.json: 'text' is \"t\": expected a number"},
        {"a_fraction_for_a_whole_number", [](Fields& f) { return read_as<int64_t>(f, "half"); },
         "'half': expected a whole number", "config.json: 'half' is 0.5: expected a whole number"},
        {"out_of_the_type", [](Fields& f) { return read_as<uint8_t>(f, "big"); },
         "'big': expected a whole number in [0, 255]",
         "config.json: 'big' is 300: expected a whole number in [0, 255]"},
        {"a_sign", [](Fields& f) { return read_as<uint64_t>(f, "minus"); },
         "'minus': expected a whole number of at least 0",
         "config.json: 'minus' is -1: expected a whole number of at least 0"},
        {"one_item_of_a_list", [](Fields& f) { return read_as<std::vector<int64_t>>(f, "mixed"); },
         "'mixed': expected a list, each item a whole number",
         "config.json: 'mixed' is [1,\"2\"]: expected a list, each item a whole number"},
        same("whole_numbers_are_numbers", [](Fields& f) { return read_as<double>(f, "n"); }),
        same("null_counts_as_absent", [](Fields& f) { return read_as<int64_t>(f, "none"); }),
        same("an_absent_field_may_be", [](Fields& f) { return read_as<int64_t>(f, "absent"); }),
        {"a_required_field_may_not", [](Fields& f) { return need_as<int64_t>(f, "absent"); }, "'absent' is missing",
         "config.json: 'absent' is missing"},
        {"a_required_field_is_not_null", [](Fields& f) { return need_as<int64_t>(f, "none"); },
         "'none': expected a whole number", "config.json: 'none' is null: expected a whole number"},
        {"out_of_range",
         [](Fields& f) {
             int n = 1;
             return f.read_in("n", n, 5, 7);
         },
         "'n': 3 is not in [5, 7]", "config.json: 'n' is 3: 3 is not in [5, 7]"},
        {"another_value", [](Fields& f) { return f.must_be("on", false); }, "'on': only false is supported",
         "config.json: 'on' is true: only false is supported"},
        same("the_supported_value", [](Fields& f) { return f.must_be("on", true); }),
        {"no_object", [](Fields& f) { return f.object("list").ok() ? Status(Ok{}) : f.object("list").error(); },
         "'list': expected an object", "config.json: 'list' is [1,2]: expected an object"},
        {"no_list", [](Fields& f) { return f.array("inner").ok() ? Status(Ok{}) : f.array("inner").error(); },
         "'inner': expected a list", "config.json: 'inner' is {\"a\":1}: expected a list"},
    };
}

INSTANTIATE_TEST_SUITE_P(Base, FieldCases, testing::ValuesIn(field_cases()),
                         [](const auto& info) { return info.param.name; });

TEST(Fields, UnreadFieldsAreRefusedWithTheNearestKnownOne) {
    const Json json = *parse_json(R"({"temperature": 1, "temperatur": 2, "dropout": 3, "absent": null})");
    double value = 0;
    Fields plain(json, "body");
    ASSERT_TRUE(plain.read("temperature", value).ok());
    EXPECT_EQ(plain.all_read().error().message(),
              "body: 'temperatur': is not a known field; did you mean 'temperature'?");
    EXPECT_EQ(plain.blamed(), "temperatur");
    Fields known(json, "body", quoting);
    ASSERT_TRUE(known.read("temperature", value).ok());
    known.ignore("temperatur");
    EXPECT_TRUE(known.all_read().ok()) << "dropout is ignorable by the policy, a null never matters";
}

TEST(Fields, AValueThatIsNotAnObjectHasNoFields) {
    const Json list = Json::array({1});
    int64_t n = 5;
    Fields fields(list, "line 3");
    EXPECT_TRUE(fields.read("n", n).ok());
    EXPECT_EQ(fields.need("n", n).error().message(), "line 3: expected an object with 'n'");
    EXPECT_EQ(n, 5);
}

}  // namespace
}  // namespace nibble
