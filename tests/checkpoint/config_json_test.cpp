#include "checkpoint/config_json.h"

#include "folders.h"

namespace nibble::test {
namespace {

TEST(ConfigJson, bare_python_tokens_survive_and_key_order_stays) {
    const std::string text = R"({
  "z": 1,
  "limit": [
    0.0,
    Infinity,
    -Infinity
  ],
  "a": "a \"quoted\" \\ NaN word",
  "eps": 1e-05,
  "bad": NaN
}
)";
    const Json config = value_of(parse_config(text));
    EXPECT_EQ(config["limit"][1], "Infinity");
    EXPECT_EQ(value_of(config_text(config, 2)), text);
}

TEST(ConfigJson, a_quoted_token_is_refused_because_it_could_not_be_told_apart) {
    for (const char* text : {R"({"a": "Infinity"})", R"({"NaN": 1})", R"(["-Infinity"])"})
        EXPECT_NE(message_of(parse_config(text)).find("bare token"), std::string::npos);
    EXPECT_TRUE(parse_config(R"({"a": "Infinity and beyond"})").ok());
}

TEST(ConfigJson, text_that_is_not_utf8_is_an_error) {
    EXPECT_NE(message_of(config_text(Json{{"a", "\xFF"}}, 2)).find("UTF-8"), std::string::npos);
}

TEST(ConfigJson, every_golden_configuration_is_written_as_it_was_read) {
    const std::filesystem::path root = test_data("golden/models");
    for (const auto& entry : std::filesystem::directory_iterator(root)) {
        const std::string text = read_file(entry.path() / "config.json");
        EXPECT_EQ(value_of(config_text(value_of(parse_config(text)), 2)), text + "\n") << entry.path();
    }
}

}  // namespace
}  // namespace nibble::test
