// Calls as the published chat templates of the model families write them: each is accepted by the grammar of required
// calls and read as the same arguments, at once and one byte at a time.
#include "chat/answer_parser.h"
#include "chat/answer_scanner.h"
#include "chat/chat_format.h"
#include "chat/tool_format.h"
#include "grammar/matcher.h"
#include "support/files.h"

#include <gtest/gtest.h>

using namespace nibble;
using namespace nibble::test;

namespace {

constexpr const char* published_tools =
    R"([{"type":"function","function":{"name":"weather","parameters":{"type":"object","properties":{)"
    R"("city":{"type":"string"},"days":{"type":"integer"},"units":{"type":"array","items":{"type":"string"}},)"
    R"("now":{"type":"boolean"},"where":{"type":"object","properties":{"x":{"type":"number"}}}}}}},)"
    R"({"type":"function","function":{"name":"time"}}])";

struct PublishedCall {
    const char* format;
    const char* source;  // chat template, as far as it determines the format
    std::string text;
    std::vector<std::pair<std::string, std::string>> calls;  // names and arguments
};

using PublishedPairs = std::vector<std::pair<std::string, std::string>>;

// Families: the sources are the files of llama.cpp's models/templates or, where it has none, the parsers of vLLM.
std::vector<PublishedCall> published_calls() {
    const PublishedPairs both{
        {"weather", R"({"city":"Bad Homburg","days":3,"units":["C", "F"],"now":true,"where":{"x": 1.5}})"},
        {"time", "{}"}};
    const PublishedPairs hard{{"weather", R"({"city":"a \"b\"\n <c>\n","now":false})"}};
    std::vector<PublishedCall> out;
    const char* glm = "<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>";
    out.push_back({"glm4", glm,  // glm_4_5.jinja, GLM-4.6.jinja
                   "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Bad Homburg</arg_value>\n"
                   "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n"
                   "<arg_key>units</arg_key>\n<arg_value>[\"C\", \"F\"]</arg_value>\n"
                   "<arg_key>now</arg_key>\n<arg_value>true</arg_value>\n"
                   "<arg_key>where</arg_key>\n<arg_value>{\"x\": 1.5}</arg_value>\n</tool_call>\n"
                   "<tool_call>time\n</tool_call>",
                   both});
    out.push_back({"glm4", glm,
                   "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>a \"b\"\n <c>\n</arg_value>\n"
                   "<arg_key>now</arg_key>\n<arg_value>false</arg_value>\n</tool_call>",
                   hard});
    out.push_back({"glm4", "<arg_key>{k}</arg_key><arg_value>{v}</arg_value>",  // GLM-4.7: vLLM's glm47_moe parser
                   "<tool_call>weather<arg_key>city</arg_key><arg_value>Bad Homburg</arg_value>"
                   "<arg_key>days</arg_key><arg_value>3</arg_value>"
                   "<arg_key>units</arg_key><arg_value>[\"C\", \"F\"]</arg_value>"
                   "<arg_key>now</arg_key><arg_value>true</arg_value>"
                   "<arg_key>where</arg_key><arg_value>{\"x\": 1.5}</arg_value></tool_call>"
                   "<tool_call>time</tool_call>",
                   both});
    out.push_back({"kimi_k2", "<|tool_calls_section_begin|>",  // Kimi-K2-Thinking.jinja
                   "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
                   "{\"city\":\"Bad Homburg\",\"days\":3,\"units\":[\"C\", \"F\"],\"now\":true,\"where\":{\"x\": 1.5}}"
                   "<|tool_call_end|><|tool_call_begin|>functions.time:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
                   "<|tool_calls_section_end|>",
                   both});
    out.push_back({"minimax_m2", "<minimax:tool_call>",  // unsloth-MiniMax-M2.jinja
                   "<minimax:tool_call>\n<invoke name=\"weather\">\n"
                   "<parameter name=\"city\">Bad Homburg</parameter>\n<parameter name=\"days\">3</parameter>\n"
                   "<parameter name=\"units\">[\"C\", \"F\"]</parameter>\n"
                   "<parameter name=\"now\">true</parameter>\n"
                   "<parameter name=\"where\">{\"x\": 1.5}</parameter>\n</invoke>\n"
                   "<invoke name=\"time\">\n</invoke>\n</minimax:tool_call>",
                   both});
    out.push_back(
        {"minimax_m2", "<minimax:tool_call>",
         "<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">a \"b\"\n <c>\n</parameter>\n"
         "<parameter name=\"now\">false</parameter>\n</invoke>\n</minimax:tool_call>",
         hard});
    // DeepSeek-V3.2.jinja; V4 differs in the outer tag (vLLM's deepseekv4 parser)
    for (const auto& [name, tag] : {std::pair{"deepseek_v32", "function_calls"}, {"deepseek_v4", "tool_calls"}}) {
        const std::string begin = std::string("<｜DSML｜") + tag + ">\n<｜DSML｜invoke name=\"weather\">\n";
        const std::string end = std::string("</｜DSML｜invoke>\n</｜DSML｜") + tag + ">";
        const char* source = name == std::string_view("deepseek_v4") ? "｜DSML｜ <{{ d }}tool_calls>"
                                                                     : "｜DSML｜ <{{ d }}function_calls>";
        const auto value = [](const char* key, const char* is_text, const char* text) {
            return std::string("<｜DSML｜parameter name=\"") + key + "\" string=\"" + is_text + "\">" + text +
                   "</｜DSML｜parameter>\n";
        };
        out.push_back({name, source,
                       begin + value("city", "true", "Bad Homburg") + value("days", "false", "3") +
                           value("units", "false", "[\"C\", \"F\"]") + value("now", "false", "true") +
                           value("where", "false", "{\"x\": 1.5}") +
                           "</｜DSML｜invoke>\n<｜DSML｜invoke name=\"time\">\n" + end,
                       both});
        out.push_back({name, source,
                       begin + value("city", "true", "a \"b\"\n <c>\n") + value("now", "false", "false") + end, hard});
    }
    out.push_back({"seed_oss", "<seed:tool_call>",  // ByteDance-Seed-OSS.jinja
                   "<seed:tool_call>\n<function=weather>\n<parameter=city>Bad Homburg</parameter>\n"
                   "<parameter=days>3</parameter>\n<parameter=units>[\"C\", \"F\"]</parameter>\n"
                   "<parameter=now>true</parameter>\n<parameter=where>{\"x\": 1.5}</parameter>\n</function>\n"
                   "</seed:tool_call>\n<seed:tool_call>\n<function=time>\n</function>\n</seed:tool_call>",
                   both});
    const std::string objects =
        "[{\"name\": \"weather\", \"arguments\": {\"city\":\"Bad Homburg\",\"days\":3,\"units\":[\"C\", \"F\"],"
        "\"now\":true,\"where\":{\"x\": 1.5}}}, {\"name\": \"time\", \"arguments\": {}}]";
    out.push_back({"granite", "<|tool_call|>", "<|tool_call|>" + objects, both});  // vLLM's granite parser
    // llama-cpp-microsoft-Phi-4-mini-instruct.jinja
    out.push_back({"phi4_mini", "<|tool_call|> <|/tool_call|>", "<|tool_call|>" + objects + "<|/tool_call|>", both});
    const PublishedPairs dense{
        {"weather", R"({"city":"Bad Homburg","days":3,"units":["C","F"],"now":true,"where":{"x":1.5}})"},
        {"time", "{}"}};
    // LFM2.5-8B-A1B.jinja, with the double quotes of LFM2's model card; llama-cpp-lfm2.jinja writes objects
    out.push_back({"lfm2", "<|tool_call_start|>",
                   "<|tool_call_start|>[weather(city=\"Bad Homburg\", days=3, units=[\"C\", \"F\"], now=True, "
                   "where={\"x\": 1.5}), time()]<|tool_call_end|>",
                   dense});
    out.push_back({"lfm2", "<|tool_call_start|>",
                   "<|tool_call_start|>[weather(city=\"a \\\"b\\\"\\n <c>\\n\", now=False)]<|tool_call_end|>", hard});
    out.push_back(
        {"lfm2", "<|tool_list_start|> '{\"name\": \"'", "<|tool_call_start|>" + objects + "<|tool_call_end|>", both});
    // gemma4.jinja
    out.push_back({"gemma4", "<|tool_call>",
                   "<|tool_call>call:weather{city:<|\"|>Bad Homburg<|\"|>,days:3,units:[<|\"|>C<|\"|>,<|\"|>F<|\"|>],"
                   "now:true,where:{x:1.5}}<tool_call|><|tool_call>call:time{}<tool_call|>",
                   dense});
    out.push_back({"gemma4", "<|tool_call>",
                   "<|tool_call>call:weather{city:<|\"|>a \"b\"\n <c>\n<|\"|>,now:false}<tool_call|>", hard});
    out.push_back({"hermes", "<tool_call><function=",  // Qwen3-Coder.jinja; Qwen3.5's template writes the same
                   "<tool_call>\n<function=weather>\n<parameter=city>\nBad Homburg\n</parameter>\n"
                   "<parameter=days>\n3\n</parameter>\n<parameter=units>\n[\"C\", \"F\"]\n</parameter>\n"
                   "<parameter=now>\ntrue\n</parameter>\n<parameter=where>\n{\"x\": 1.5}\n</parameter>\n</function>\n"
                   "</tool_call>\n<tool_call>\n<function=time>\n</function>\n</tool_call>",
                   both});
    return out;
}

ParsedAnswer published_read(const char* format, std::string_view text, size_t step, bool cut_off = false) {
    AnswerFormat made;
    made.tools = find_tool_format(format);
    made.tool_list = *parse_json(published_tools);
    AnswerParser parser(std::make_unique<AnswerScanner>(made));
    for (size_t at = 0; at < text.size(); at += step) parser.push(text.substr(at, step));
    parser.finish(cut_off);
    return parser.answer();
}

PublishedPairs published_pairs(const ParsedAnswer& answer) {
    PublishedPairs out;
    for (const ToolCall& call : answer.tool_calls) out.emplace_back(call.name, call.arguments);
    return out;
}

}  // namespace

TEST(PublishedCalls, TemplatesDetermineTheFormat) {
    for (const PublishedCall& one : published_calls()) {
        const ToolFormat* found = tool_format_of(one.source);
        ASSERT_TRUE(found) << one.source;
        EXPECT_EQ(found->name, one.format) << one.source;
    }
}

TEST(PublishedCalls, AreReadAtOnceAndByBytes) {
    for (const PublishedCall& one : published_calls())
        for (const std::string lead : {"", "I look."})
            for (const size_t step : {size_t(100000), size_t(1), size_t(7)}) {
                const ParsedAnswer answer = published_read(one.format, lead + one.text, step);
                EXPECT_EQ(published_pairs(answer), one.calls) << one.format << ": " << one.text;
                EXPECT_EQ(answer.content, lead) << one.format;
            }
}

TEST(PublishedCalls, AreAcceptedByTheGrammarOfRequiredCalls) {
    const auto tokenizer = Tokenizer::from_folder(test_data("chat"));
    ASSERT_TRUE(tokenizer.ok());
    for (const PublishedCall& one : published_calls()) {
        const ToolFormat& format = *find_tool_format(one.format);
        const auto grammar = Grammar::from_structure(
            tool_structure(format, *parse_json(published_tools), 4, one.source, *tokenizer), answer_schema);
        ASSERT_TRUE(grammar.ok()) << one.format << grammar.error().message();
        EXPECT_TRUE((*grammar)->matches(one.text)) << one.format << ": " << one.text;
        EXPECT_FALSE((*grammar)->matches(one.text.substr(0, one.text.size() - 1))) << one.format;
        std::string other = one.text;
        other.replace(other.find("weather"), 7, "whether");
        EXPECT_FALSE((*grammar)->matches(other)) << one.format;
    }
}

// The token limit may end an answer at every byte. The parts so far are the beginning of the whole call, and no byte of
// a call becomes content.
TEST(PublishedCalls, IncompleteCallsKeepWhatIsThere) {
    for (const PublishedCall& one : published_calls())
        for (size_t end = 1; end < one.text.size(); ++end) {
            const std::string_view text = std::string_view(one.text).substr(0, end);
            const ParsedAnswer answer = published_read(one.format, text, 1, true);
            EXPECT_EQ(answer.content, "") << one.format << ": " << text;
            ASSERT_LE(answer.tool_calls.size(), one.calls.size()) << text;
            for (size_t i = 0; i < answer.tool_calls.size(); ++i) {
                EXPECT_EQ(answer.tool_calls[i].name, one.calls[i].first) << text;
                EXPECT_TRUE(one.calls[i].second.starts_with(answer.tool_calls[i].arguments))
                    << text << "\n"
                    << answer.tool_calls[i].arguments;
            }
            const ParsedAnswer whole = published_read(one.format, text, 100000, true);
            EXPECT_EQ(published_pairs(whole), published_pairs(answer)) << text;
        }
}

// A template of Kimi K2 writes the id of a call as its name, so ids continue the numbers of the conversation.
TEST(PublishedCalls, IdsOfKimiCountTheConversation) {
    AnswerFormat format;
    format.tools = find_tool_format("kimi_k2");
    format.earlier_calls = 3;
    AnswerParser parser(std::make_unique<AnswerScanner>(format));
    parser.push(
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.a.b:7<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_call_begin|>c<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>");
    ASSERT_EQ(parser.answer().tool_calls.size(), 2u);
    EXPECT_EQ(parser.answer().tool_calls[0].name, "a.b");
    EXPECT_EQ(parser.answer().tool_calls[0].id, "functions.a.b:3");
    EXPECT_EQ(parser.answer().tool_calls[1].id, "functions.c:4");
}

// DeepSeek's tags state whether a value is a text; schemas that allow both kinds are written and read accordingly.
TEST(PublishedCalls, TagsOfDeepSeekStateTheKind) {
    const auto tokenizer = Tokenizer::from_folder(test_data("chat"));
    ASSERT_TRUE(tokenizer.ok());
    const Json tools = *parse_json(
        R"([{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"v":{"anyOf":[)"
        R"({"type":"string"},{"type":"integer"}]}},"required":["v"]}}}])");
    const auto grammar =
        Grammar::from_structure(tool_structure(*find_tool_format("deepseek_v32"), tools, 1, "", *tokenizer));
    ASSERT_TRUE(grammar.ok());
    const auto taken = [&](const char* kind, const char* value) -> std::string {
        const std::string text = std::string(
                                     "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter "
                                     "name=\"v\" string=\"") +
                                 kind + "\">" + value +
                                 "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>";
        if (!(*grammar)->matches(text)) return "";
        const ParsedAnswer answer = published_read("deepseek_v32", text, 1);
        return answer.tool_calls.size() == 1 ? answer.tool_calls[0].arguments : "no call";
    };
    EXPECT_EQ(taken("true", "12"), R"({"v":"12"})");
    EXPECT_EQ(taken("false", "12"), R"({"v":12})");
    EXPECT_EQ(taken("true", "\"x\""), R"({"v":"\"x\""})");
    EXPECT_EQ(taken("false", "\"x\""), "");
    EXPECT_EQ(taken("false", "x"), "");
}

// Notations that are not JSON: arguments as models write them.
TEST(PublishedCalls, LiteralArgumentsBecomeJson) {
    struct Literal {
        const char *format, *text, *arguments;
    };
    const Literal cases[]{
        {"lfm2", "[f(a='x', b=\"y\")]", R"({"a":"x","b":"y"})"},
        {"lfm2", "[f(a='it's', b=None)]", R"({"a":"it's","b":null})"},  // the template escapes nothing
        {"lfm2", "[f(a='say \"hi\"', b=(1, 2.5,))]", R"({"a":"say \"hi\"","b":[1,2.5]})"},
        {"lfm2", "[f( a = {'k': [True, {}], \"m\": []} )]", R"({"a":{"k":[true,{}],"m":[]}})"},
        {"lfm2", R"([f(a='\'\t\x41\u00e9\q')])", R"({"a":"'\t\u0041\u00e9\\q"})"},
        {"lfm2", "[f(a=red)]", R"({"a":"red"})"},
        {"lfm2", "f(a=-1e3)", R"({"a":-1e3})"},
        {"gemma4", "call:f{a:<|\"|>x}, \\n \"<|\"|>}", R"({"a":"x}, \\n \""})"},
        {"gemma4", "call:f{a:{b:[<|\"|><|\"|>,{c:null}]},d:-0.5}", R"({"a":{"b":["",{"c":null}]},"d":-0.5})"},
        {"gemma4", "call:f{<|\"|>a b<|\"|>:[[1],[]]}", R"({"a b":[[1],[]]})"},
        {"gemma4", "call:f{ a: \"x\", b: true }", R"({"a":"x","b":true})"},
        {"gemma4", "call:f{é:<|\"|>ü😀<|\"|>}", R"({"é":"ü😀"})"}};
    for (const Literal& one : cases) {
        const ToolFormat& format = *find_tool_format(one.format);
        for (const size_t step : {size_t(100000), size_t(1), size_t(3)}) {
            const std::string text = std::string(format.begin) + one.text + std::string(format.end) + "done";
            const ParsedAnswer answer = published_read(one.format, text, step);
            ASSERT_EQ(answer.tool_calls.size(), 1u) << text;
            EXPECT_EQ(answer.tool_calls[0].arguments, one.arguments) << text;
            EXPECT_TRUE(Json::accept(answer.tool_calls[0].arguments)) << text;
            EXPECT_EQ(answer.content, "done") << text;
        }
    }
}

// Templates of Qwen3.5 and Seed-OSS write values that are not texts as Python prints them.
TEST(PublishedCalls, ValuesOfPythonAreReadByTheirType) {
    const Json tools = *parse_json(
        R"([{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"s":{"type":"string"},)"
        R"("b":{"type":"boolean"},"n":{"type":["integer","null"]},"l":{"type":"array"},"m":{"type":["string","null"]}}}}}])");
    const std::pair<const char*, const char*> cases[]{
        {"<parameter=b>True</parameter>", R"({"b":true})"},
        {"<parameter=b>False</parameter><parameter=n>None</parameter>", R"({"b":false,"n":null})"},
        {"<parameter=n>3</parameter>", R"({"n":3})"},
        {"<parameter=l>['a', {'k': True}]</parameter>", R"({"l":["a",{"k":true}]})"},
        {"<parameter=l>1, 2=3</parameter>", R"({"l":"1, 2=3"})"},
        {"<parameter=s>True</parameter><parameter=m>None</parameter>", R"({"s":"True","m":"None"})"}};
    for (const char* name : {"hermes", "seed_oss"})
        for (const auto& [values, arguments] : cases) {
            AnswerFormat format;
            format.tools = find_tool_format(name);
            format.tool_list = tools;
            AnswerParser parser(std::make_unique<AnswerScanner>(format));
            parser.push(std::string(format.tools->begin) + "\n<function=f>\n" + values + "</function>\n" +
                        std::string(format.tools->end));
            parser.finish();
            ASSERT_EQ(parser.answer().tool_calls.size(), 1u) << values;
            EXPECT_EQ(parser.answer().tool_calls[0].arguments, arguments) << name;
        }
}
