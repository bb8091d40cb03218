// Required calls with tags: the parser reads every text of their grammar as arguments of the tool's schema.
#include "chat/answer_parser.h"
#include "chat/answer_scanner.h"
#include "chat/tool_format.h"
#include "grammar/matcher.h"
#include "support/files.h"

#include <gtest/gtest.h>

#include <fstream>
#include <random>

using namespace nibble;
using namespace nibble::test;

namespace {

Json tagged_tools(const Json& parameters) {
    return {{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", parameters}}}}};
}

Result<std::shared_ptr<const Grammar>> tagged_grammar(const Json& parameters) {
    const auto tokenizer = Tokenizer::from_folder(test_data("chat"));
    EXPECT_TRUE(tokenizer.ok());
    return Grammar::from_structure(
        tool_structure(*find_tool_format("hermes"), tagged_tools(parameters), 1, "<function=", *tokenizer));
}

using TaggedPairs = std::vector<std::pair<std::string, std::string>>;

std::string tagged_text(const TaggedPairs& pairs) {
    std::string out = "<tool_call>\n<function=f>\n";
    for (const auto& [name, value] : pairs) out += "<parameter=" + name + ">\n" + value + "\n</parameter>\n";
    return out + "</function>\n</tool_call>";
}

std::string tagged_arguments(const Json& parameters, std::string_view text) {
    AnswerFormat format;
    format.tools = find_tool_format("hermes");
    format.tool_list = tagged_tools(parameters);
    AnswerParser parser(std::make_unique<AnswerScanner>(format));
    parser.push(text);
    parser.finish();
    EXPECT_EQ(parser.answer().content, "") << text;
    return parser.answer().tool_calls.size() == 1 ? parser.answer().tool_calls[0].arguments : "no call";
}

// Returns the arguments of a call; "": the grammar does not accept it.
std::string tagged_taken(const Json& parameters, const TaggedPairs& pairs) {
    const auto made = tagged_grammar(parameters);
    EXPECT_TRUE(made.ok()) << made.error().message();
    const std::string text = tagged_text(pairs);
    if (!made.ok() || !(*made)->matches(text)) return "";
    std::string out = tagged_arguments(parameters, text);
    const auto judge = Grammar::from_json_schema(parameters);
    EXPECT_TRUE(judge.ok() && (*judge)->matches(out)) << out;
    return out;
}

Json tagged_schema(const char* properties, const char* rest = R"({"additionalProperties": false})") {
    Json out{{"type", "object"}, {"properties", *parse_json(properties)}};
    out.update(*parse_json(rest));
    return out;
}

}  // namespace

TEST(TaggedCalls, ParametersAreThoseOfTheSchema) {
    const Json schema = tagged_schema(
        R"({"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}, "unit": {"enum": ["C", "F"]}})",
        R"({"required": ["city", "days"], "additionalProperties": false})");
    EXPECT_EQ(tagged_taken(schema, {{"city", "Bonn"}, {"days", "3"}}), R"({"city":"Bonn","days":3})");
    EXPECT_EQ(tagged_taken(schema, {{"city", ""}, {"days", "3"}, {"unit", "F"}}), R"({"city":"","days":3,"unit":"F"})");
    EXPECT_EQ(tagged_taken(schema, {{"city", "12"}, {"days", "3"}, {"unit", "\"F\""}}),
              R"({"city":"12","days":3,"unit":"F"})");
    for (const TaggedPairs& pairs : {TaggedPairs{},
                                     {{"city", "Bonn"}},
                                     {{"days", "3"}, {"city", "Bonn"}},
                                     {{"city", "a"}, {"days", "0"}},
                                     {{"city", "a"}, {"days", "x"}},
                                     {{"city", "a"}, {"days", "3"}, {"unit", "K"}},
                                     {{"city", "a"}, {"city", "a"}, {"days", "3"}},
                                     {{"city", "a"}, {"days", "3"}, {"x", "1"}}})
        EXPECT_EQ(tagged_taken(schema, pairs), "") << tagged_text(pairs);
}

TEST(TaggedCalls, TextsContainAnythingExceptClosingTags) {
    const Json schema = tagged_schema(R"({"s": {"type": "string"}})");
    for (const char* text : {"a < b && c", "\n two\nlines \n", "<parameter=s>", "</parameter", "</div>\n</tool_call>",
                             "{\"a\": [", "null", "é😀", "\t\"\\", "</</function"})
        EXPECT_EQ(tagged_taken(schema, {{"s", text}}), Json({{"s", text}}).dump()) << text;
    for (const char* text : {"</parameter>", "a</function>b", "\xFF"})
        EXPECT_EQ(tagged_taken(schema, {{"s", text}}), "") << text;
    const Json narrow = tagged_schema(R"({"s": {"type": "string", "pattern": "^<[a-z]+", "maxLength": 4}})");
    EXPECT_EQ(tagged_taken(narrow, {{"s", "<ab>"}}), R"({"s":"<ab>"})");
    EXPECT_EQ(tagged_taken(narrow, {{"s", "<abc>"}}), "");
    EXPECT_EQ(tagged_taken(narrow, {{"s", "\"<ab\""}}), "");
    // A text with a length limit needs states for every character; a limit that is too large is an error.
    EXPECT_TRUE(tagged_grammar(tagged_schema(R"({"s": {"type": "string", "maxLength": 1000}})")).ok());
    const auto long_text = tagged_grammar(tagged_schema(R"({"s": {"type": "string", "maxLength": 9000}})"));
    ASSERT_FALSE(long_text.ok());
    EXPECT_NE(long_text.error().message().find("needs more than 150000 states"), std::string::npos);
}

TEST(TaggedCalls, OtherValuesAreJsonOrPlainTexts) {
    const Json maybe = tagged_schema(R"({"v": {"anyOf": [{"type": "string"}, {"type": "null"}]}})");
    EXPECT_EQ(tagged_taken(maybe, {{"v", "null"}}), R"({"v":null})");
    EXPECT_EQ(tagged_taken(maybe, {{"v", "nullable"}}), R"({"v":"nullable"})");
    EXPECT_EQ(tagged_taken(maybe, {{"v", "\"12\""}}), R"({"v":"12"})");
    EXPECT_EQ(tagged_taken(maybe, {{"v", "12 days"}}), R"({"v":"12 days"})");
    EXPECT_EQ(tagged_taken(maybe, {{"v", "a \"b\nc"}}), R"({"v":"a \"b\nc"})");
    for (const char* text : {"12", " -1.5e3\n", "true", "[1", "</function>"})
        EXPECT_EQ(tagged_taken(maybe, {{"v", text}}), "") << text;
    const Json list = tagged_schema(R"({"v": {"type": "array", "items": {"type": "string"}}})");
    EXPECT_EQ(tagged_taken(list, {{"v", R"(["</parameter>", "\"</function>"])"}}),
              R"({"v":["</parameter>", "\"</function>"]})");
    EXPECT_EQ(tagged_taken(list, {{"v", "a"}}), "");
    const Json reference =
        tagged_schema(R"({"v": {"$ref": "#/$defs/n"}})",
                      R"({"$defs": {"n": {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}},
                                             "additionalProperties": false}}})");
    EXPECT_EQ(tagged_taken(reference, {{"v", R"({"next": {}})"}}), R"({"v":{"next": {}}})");
}

TEST(TaggedCalls, UnlistedParametersFollowAdditionalProperties) {
    const Json open = tagged_schema(R"({"a": {"type": "null"}})", "{}");
    EXPECT_EQ(tagged_taken(open, {{"a", "null"}, {"b", "1"}}), R"({"a":null,"b":"1"})");
    EXPECT_EQ(tagged_taken(open, {{"b", "1"}, {"b", "2"}, {"c", ""}}), R"({"b":"1","c":""})");
    EXPECT_EQ(tagged_taken(open, {{" b", "1"}}), "");
    const Json counts = tagged_schema("{}", R"({"additionalProperties": {"type": "integer"}, "minProperties": 1})");
    EXPECT_EQ(tagged_taken(counts, {{"b", "1"}}), R"({"b":1})");
    EXPECT_EQ(tagged_taken(counts, {{"b", "x"}}), "");
    EXPECT_EQ(tagged_taken(counts, {}), "");
    const Json whole = {{"anyOf",
                         {tagged_schema(R"({"k": {"const": 1}})", R"({"required": ["k"]})"),
                          tagged_schema(R"({"k": {"const": "2"}})", R"({"required": ["k"]})")}}};
    EXPECT_EQ(tagged_taken(whole, {{"k", "1"}}), R"({"k":1})");
    EXPECT_EQ(tagged_taken(whole, {{"k", "\"2\""}}), R"({"k":"2"})");
    EXPECT_EQ(tagged_taken(whole, {{"k", "2"}}), "");
}

TEST(TaggedCalls, UnsupportedSchemasAreErrors) {
    const auto error = [](const Json& schema) {
        const auto made = tagged_grammar(schema);
        return made.ok() ? "" : made.error().message();
    };
    EXPECT_EQ(error(tagged_schema(R"({"a": {"type": "array", "contains": {}}})")),
              "choice 0: #/properties/a: the keyword 'contains' is not supported");
    EXPECT_EQ(error(tagged_schema(R"({"a>b": {"type": "null"}})")),
              "choice 0: #/properties: the name 'a>b' cannot be written in a tag");
    EXPECT_NE(error({{"type", "array"}}), "");
    EXPECT_NE(error(tagged_schema(R"({"a": {"type": "string", "const": "</parameter>"}})", R"({"required": ["a"]})")),
              "");
}

// Random answers from the masks, for every schema of tests/data/grammar as that of a parameter: the parser reads
// arguments that the JSON grammar accepts. With NIBBLE_WALKS the parameters are written there for
// tests/oracles/schema_walks.py.
TEST(TaggedCalls, RandomTextsOfTheGrammarMatchTheSchema) {
    std::vector<std::string> texts;
    for (int b = 0; b < 256; ++b) texts.emplace_back(1, char(b));
    for (const char* text : {"\n</parameter>\n",
                             "</",
                             "\n</",
                             "parameter",
                             "function",
                             "<parameter=",
                             ">\n",
                             "null",
                             "true",
                             "12",
                             "\"",
                             "\":",
                             "}",
                             "]",
                             "é",
                             "ab",
                             " ",
                             "</parameter>",
                             "</function>\n",
                             "<tool_call>"})
        texts.emplace_back(text);
    const auto vocabulary = GrammarVocabulary::of(texts);
    ASSERT_TRUE(vocabulary.ok());
    std::ifstream in(std::string(NIBBLE_SOURCE_DIR) + "/tests/data/grammar/schemas.jsonl");
    std::ofstream out;
    if (const char* path = std::getenv("NIBBLE_WALKS")) out.open(path);
    std::mt19937_64 dice(5);
    size_t index = 0;
    for (std::string line; std::getline(in, line); ++index) {
        Json schema = *parse_json(line);
        std::string inner = schema.dump();
        if (schema.is_object() && schema.contains("$id")) {
            schema.erase("$id");
            inner = schema.dump();
        }
        for (const auto& [from, to] : {std::pair<std::string, std::string>{"\"https://example.com/s#", "\"#"},
                                       {"\"$ref\":\"#/", "\"$ref\":\"#/properties/v/"},
                                       {"\"$ref\":\"#\"", "\"$ref\":\"#/properties/v\""}})
            for (size_t at = 0; (at = inner.find(from, at)) != inner.npos; at += to.size())
                inner.replace(at, from.size(), to);
        const Json parameters =
            tagged_schema(("{\"v\": " + inner + "}").c_str(), R"({"required": ["v"], "additionalProperties": false})");
        const auto grammar = tagged_grammar(parameters);
        ASSERT_TRUE(grammar.ok()) << inner << ": " << grammar.error().message();
        const auto judge = Grammar::from_json_schema(parameters);
        ASSERT_TRUE(judge.ok()) << inner;
        const auto tokens = std::make_shared<const GrammarTokens>(*grammar, *vocabulary);
        int complete = 0;
        for (int n = 0; n < 12; ++n) {
            GrammarMatcher matcher(tokens);
            std::string text;
            std::vector<uint32_t> mask((*vocabulary)->words());
            for (int step = 0; step < 900 && !matcher.finished(); ++step) {
                matcher.mask(mask);
                std::vector<int32_t> allowed, long_ones;
                for (size_t t = 0; t < texts.size(); ++t)
                    if (mask[t / 32] >> (t % 32) & 1) {
                        allowed.push_back(int32_t(t));
                        if (t >= 256) long_ones.push_back(int32_t(t));
                    }
                ASSERT_FALSE(allowed.empty()) << inner << ": " << text;
                const auto& from = !long_ones.empty() && dice() % 3 == 0 ? long_ones : allowed;
                const int32_t token = from[dice() % from.size()];
                ASSERT_TRUE(matcher.accept(token));
                text += texts[size_t(token)];
            }
            if (!matcher.finished()) continue;
            ++complete;
            const std::string arguments = tagged_arguments(parameters, text);
            EXPECT_TRUE((*judge)->matches(arguments)) << inner << "\n" << text << "\n" << arguments;
            ASSERT_TRUE(Json::accept(arguments)) << arguments;
            constexpr std::string_view head = "{\"v\":";
            const std::string value = arguments.substr(head.size(), arguments.size() - head.size() - 1);
            if (out.is_open()) out << index << '\t' << Json(value).dump() << '\n';
        }
        EXPECT_GT(complete, 0) << inner;
    }
    EXPECT_GT(index, 60u);
}
