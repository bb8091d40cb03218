#include "architecture/config_json.h"

#include "folders.h"

#include <limits>

namespace nibble::test {
namespace {

TEST(ConfigJson, BarePythonTokensSurviveAndKeyOrderStays) {
    const std::string text = R"({
  "z": 1,
  "limit": [
    0.0,
    Infinity,
    -Infinity
  ],
  "a": "a \"quoted\" \\ NaN word",
  "eps": 1e-05,
  "bad": NaN,
  "tagged": {
    "__float__": "Infinity"
  },
  "label": "Infinity",
  "none": [],
  "NaN": {}
}
)";
    const Json config = value_of(parse_config(text));
    EXPECT_EQ(config["limit"][1], std::numeric_limits<double>::infinity());
    EXPECT_EQ(config["label"], "Infinity");
    EXPECT_EQ(value_of(config_text(config, 2)), text);
}

TEST(ConfigJson, NumbersThatAreNotFiniteAreTaggedWhereOutputMustBeJson) {
    const Json config = value_of(parse_config(R"({"a": [1.5, -Infinity], "b": {"c": NaN}})"));
    EXPECT_EQ(tag_special_floats(config).dump(),
              R"({"a":[1.5,{"__float__":"-Infinity"}],"b":{"c":{"__float__":"NaN"}}})");
}

TEST(ConfigJson, TextThatIsNotUtf8IsAnError) {
    EXPECT_NE(message_of(config_text(Json{{"a", "\xFF"}}, 2)).find("UTF-8"), std::string::npos);
}

TEST(ConfigJson, EveryGoldenConfigurationIsWrittenAsItWasRead) {
    const std::filesystem::path root = test_data("golden/models");
    for (const auto& entry : std::filesystem::directory_iterator(root)) {
        const std::string text = read_file(entry.path() / "config.json");
        EXPECT_EQ(value_of(config_text(value_of(parse_config(text)), 2)), text + "\n") << entry.path();
    }
}

}  // namespace
}  // namespace nibble::test
