// Conversations that clients send back: calls whose arguments are not an object, deprecated functions, and functions
// without arguments.
#include "chat/chat_request.h"

#include "chat/chat_format.h"
#include "chat/tool_format.h"
#include "support/files.h"

#include <gtest/gtest.h>

namespace nibble::test {
namespace {

Result<std::string> written(const std::string& source, const Json& messages) {
    auto tokenizer = Tokenizer::from_folder(test_data("chat"));
    EXPECT_TRUE(tokenizer.ok());
    auto parsed = ChatTemplate::parse(source);
    EXPECT_TRUE(parsed.ok()) << parsed.error().message();
    auto format =
        ChatFormat::create(*tokenizer, std::make_shared<const ChatTemplate>(*std::move(parsed)), Json::object(), {});
    EXPECT_TRUE(format.ok());
    ChatRequest request;
    request.messages = messages;
    NIBBLE_TRY(const ChatPrompt prompt, format->prompt(request));
    return prompt.text;
}

// Ways in which templates write the arguments of a call.
struct Writer {
    const char* name;
    std::string source;
};
const std::string of_call = "{% for m in messages %}{% for c in m.tool_calls or [] %}";
const std::string end_of_call = "{% endfor %}{% endfor %}";
const Writer json_writer{"tojson", of_call + "{{ c.function.arguments | tojson }}" + end_of_call};
const Writer either_writer{"text_or_json", of_call +
                                               "{% if c.function.arguments is string %}{{ c.function.arguments }}"
                                               "{% else %}{{ c.function.arguments | tojson }}{% endif %}" +
                                               end_of_call};
const Writer items_writer{
    "items", of_call + "{% for k, v in c.function.arguments.items() %}[{{ k }}={{ v }}]{% endfor %}" + end_of_call};
const Writer filter_writer{
    "items_filter",
    of_call + "{% for k, v in c.function.arguments | items %}[{{ k }}={{ v }}]{% endfor %}" + end_of_call};

struct ArgumentsCase {
    const char* what;
    std::string arguments;
    std::string json, either, items;  // expected texts for each kind of template
};

class HistoryArguments : public testing::TestWithParam<ArgumentsCase> {};

TEST_P(HistoryArguments, AreRenderedByEveryKindOfTemplate) {
    const ArgumentsCase& given = GetParam();
    const Json messages =
        Json::array({{{"role", "user"}, {"content", "q"}},
                     {{"role", "assistant"},
                      {"content", nullptr},
                      {"tool_calls", Json::array({{{"id", "1"},
                                                   {"type", "function"},
                                                   {"function", {{"name", "f"}, {"arguments", given.arguments}}}}})}}});
    for (const auto& [writer, expected] : {std::pair{json_writer, given.json},
                                           {either_writer, given.either},
                                           {items_writer, given.items},
                                           {filter_writer, given.items}}) {
        const auto text = written(writer.source, messages);
        ASSERT_TRUE(text.ok()) << writer.name << ": " << text.error().message();
        EXPECT_EQ(*text, expected) << writer.name;
    }
}

INSTANTIATE_TEST_SUITE_P(
    Texts, HistoryArguments,
    testing::Values(ArgumentsCase{"object", R"({"a": 1})", R"({"a": 1})", R"({"a": 1})", "[a=1]"},
                    ArgumentsCase{"empty", "", "{}", "{}", ""},
                    ArgumentsCase{"cut", R"({"a": "b)", R"("{\"a\": \"b")", R"({"a": "b)", R"([arguments={"a": "b])"},
                    ArgumentsCase{"words", "not JSON", R"("not JSON")", "not JSON", "[arguments=not JSON]"},
                    ArgumentsCase{"list", "[1]", R"("[1]")", "[1]", "[arguments=[1]]"},
                    ArgumentsCase{"number", "5", R"("5")", "5", "[arguments=5]"},
                    ArgumentsCase{"null", "null", R"("null")", "null", "[arguments=null]"},
                    ArgumentsCase{"text", R"("x")", R"("\"x\"")", R"("x")", R"([arguments="x"])"},
                    ArgumentsCase{"two_objects", "{}{}", R"("{}{}")", "{}{}", "[arguments={}{}]"}),
    [](const auto& info) { return std::string(info.param.what); });

TEST(HistoryArguments, ErrorsOfTheTemplateAreReported) {
    const auto text =
        written("{{ messages[0].tool_calls[0].function.arguments.items() }}{{ raise_exception('no') }}",
                *parse_json(R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{"}}]}])"));
    ASSERT_FALSE(text.ok());
    EXPECT_NE(text.error().message().find("no"), std::string::npos) << text.error().message();
}

TEST(DeprecatedFunctions, CallsAndResultsBecomeThoseOfTools) {
    const auto old = checked_messages(
        *parse_json(R"([{"role":"assistant","content":null,"function_call":{"name":"f","arguments":"{\"a\": 1}"}},)"
                    R"({"role":"function","name":"f","content":"2"}])"),
        false);
    ASSERT_TRUE(old.ok()) << old.error().message();
    const Json& call = (*old)[0]["tool_calls"][0];
    EXPECT_EQ(call["function"], (Json{{"name", "f"}, {"arguments", {{"a", 1}}}}));
    EXPECT_EQ((*old)[1]["role"], "tool");
    EXPECT_EQ((*old)[1]["tool_call_id"], call["id"]);
    EXPECT_FALSE((*old)[0].contains("function_call"));
}

TEST(CustomTools, CallsBecomeFunctionCallsInThePrompt) {
    const auto history = checked_messages(
        *parse_json(
            R"([{"role":"assistant","tool_calls":[{"id":"1","type":"custom","custom":{"name":"p","input":"a\n"}}]},)"
            R"({"role":"tool","tool_call_id":"1","content":"done"}])"),
        false);
    ASSERT_TRUE(history.ok()) << history.error().message();
    EXPECT_EQ((*history)[0]["tool_calls"][0],
              *parse_json(R"({"id":"1","type":"function","function":{"name":"p","arguments":{"input":"a\n"}}})"));
    const auto broken = checked_messages(
        *parse_json(R"([{"role":"assistant","tool_calls":[{"id":"1","type":"custom","custom":{"name":"p"}}]}])"),
        false);
    ASSERT_FALSE(broken.ok());
    EXPECT_EQ(broken.error().message(), "messages[0].tool_calls[0].custom.input: is not a text");
}

struct SchemaCase {
    const char* what;
    const char* parameters;  // null: absent
    bool takes_none;
};
class EmptyParameters : public testing::TestWithParam<SchemaCase> {};

TEST_P(EmptyParameters, AllowOnlyEmptyArguments) {
    const auto tokenizer = Tokenizer::from_folder(test_data("chat"));
    ASSERT_TRUE(tokenizer.ok());
    Json function{{"name", "f"}};
    if (GetParam().parameters) function["parameters"] = *parse_json(GetParam().parameters);
    const Json tools = Json::array({{{"type", "function"}, {"function", function}}});
    const auto grammar = Grammar::from_structure(tool_structure(*find_tool_format("hermes"), tools, 1, "", *tokenizer));
    ASSERT_TRUE(grammar.ok()) << grammar.error().message();
    const auto calls = [&](std::string_view arguments) {
        return (*grammar)->matches(
            fmt::format("<tool_call>\n{{\"name\": \"f\", \"arguments\": {}}}\n</tool_call>", arguments));
    };
    EXPECT_EQ(calls("{}"), std::string_view(GetParam().what) != "required");
    EXPECT_EQ(calls(R"({"a": 1})"), !GetParam().takes_none);
    EXPECT_FALSE(calls("[]"));
    EXPECT_FALSE(calls("null"));
}

INSTANTIATE_TEST_SUITE_P(
    Schemas, EmptyParameters,
    testing::Values(
        SchemaCase{"left_out", nullptr, true}, SchemaCase{"null", "null", true}, SchemaCase{"empty", "{}", true},
        SchemaCase{"object", R"({"type": "object"})", true},
        SchemaCase{"no_properties", R"({"type": "object", "properties": {}, "required": []})", true},
        SchemaCase{
            "annotated",
            R"({"title": "f", "description": "x", "properties": {}, "$schema": "http://json-schema.org/draft-07/schema#"})",
            true},
        SchemaCase{"closed", R"({"type": "object", "properties": {}, "additionalProperties": false})", true},
        SchemaCase{"open", R"({"type": "object", "additionalProperties": true})", false},
        SchemaCase{"of_numbers", R"({"type": "object", "additionalProperties": {"type": "number"}})", false},
        SchemaCase{"patterns", R"({"type": "object", "patternProperties": {"^a$": {}}})", false},
        SchemaCase{"required", R"({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})",
                   false}),
    [](const auto& info) { return std::string(info.param.what); });

// A tool with a text input and a grammar: the input is a text of the grammar, quoted as the format requires.
TEST(InputGrammars, ConstrainTheInputOfACall) {
    const auto tokenizer = Tokenizer::from_folder(test_data("chat"));
    ASSERT_TRUE(tokenizer.ok());
    const Json tools = *parse_json(R"([{"type":"function","function":{"name":"p","parameters":{"type":"object",)"
                                   R"("properties":{"input":{"type":"string"}},"required":["input"]}}}])");
    const InputGrammars grammars{{"p", "start: \"<\" line+ \">\"\nline: \"+\" /(.*)/ LF\n%import common.LF"}};
    const auto grammar = [&](const char* format, const char* source) {
        return Grammar::from_structure(
            tool_structure(*find_tool_format(format), tools, 1, source, *tokenizer, grammars));
    };
    const auto hermes = grammar("hermes", "");
    ASSERT_TRUE(hermes.ok()) << hermes.error().message();
    const auto calls = [&](std::string_view text) {
        return (*hermes)->matches(
            fmt::format("<tool_call>\n{{\"name\": \"p\", \"arguments\": {{\"input\": {}}}}}\n</tool_call>", text));
    };
    EXPECT_TRUE(calls(R"("<+a\n+ \"b\" \\ é\n>")"));
    EXPECT_TRUE(calls(R"("<+a\n>")"));
    EXPECT_FALSE(calls(R"("<+a>")"));
    EXPECT_FALSE(calls(R"("<-a\n>")"));
    EXPECT_FALSE(calls("\"<+a\n>\""));
    const auto tagged = grammar("hermes", "<function=");
    ASSERT_TRUE(tagged.ok()) << tagged.error().message();
    EXPECT_TRUE((*tagged)->matches(
        "<tool_call>\n<function=p>\n<parameter=input>\n<+a \"b\"\n>\n</parameter>\n</function>\n</tool_call>"));
    for (const auto& [format, source] : {std::pair{"llama3", ""},
                                         {"mistral", "[TOOL_CALLS]"},
                                         {"mistral", "[ARGS]"},
                                         {"nemotron", ""},
                                         {"deepseek_v3", ""},
                                         {"deepseek_v3", "```json"}})
        EXPECT_TRUE(grammar(format, source).ok()) << format;
}

}  // namespace
}  // namespace nibble::test
