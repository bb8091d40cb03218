// Answers in every format, at once and divided at every position.
#include "chat/answer_parser.h"

#include "chat/answer_scanner.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

using namespace nibble;

namespace {

AnswerFormat format_of(std::string_view tools, bool reasoning = true, bool thinking = false) {
    AnswerFormat out;
    if (reasoning) out.think_begin = "<think>", out.think_end = "</think>";
    out.thinking = thinking;
    out.tools = find_tool_format(tools);
    EXPECT_TRUE(tools == "none" || out.tools) << tools;
    out.id_seed = "seed";
    return out;
}

std::string shown(const ParsedAnswer& answer) {
    std::string out = fmt::format("R[{}] C[{}]", answer.reasoning, answer.content);
    for (const ToolCall& call : answer.tool_calls) out += fmt::format(" {}({})", call.name, call.arguments);
    return out;
}

ParsedAnswer parsed(const AnswerFormat& format, const std::vector<std::string_view>& pieces) {
    AnswerParser parser(std::make_unique<AnswerScanner>(format));
    std::vector<AnswerPart> parts;
    const auto keep = [&](std::vector<AnswerPart> more) {
        for (AnswerPart& part : more) parts.push_back(std::move(part));
    };
    for (const std::string_view piece : pieces) keep(parser.push(piece));
    keep(parser.finish());
    // Checks that the parts equal answer(), and that calls are complete: begin, arguments, end.
    ParsedAnswer joined;
    for (const AnswerPart& part : parts) {
        if (part.kind == AnswerPart::Kind::reasoning) joined.reasoning += part.text;
        if (part.kind == AnswerPart::Kind::content) joined.content += part.text;
        if (part.kind == AnswerPart::Kind::tool_begin) {
            EXPECT_EQ(part.index, joined.tool_calls.size());
            EXPECT_FALSE(part.id.empty());
            joined.tool_calls.push_back({part.id, part.name, ""});
        }
        if (part.kind == AnswerPart::Kind::tool_arguments) joined.tool_calls.at(part.index).arguments += part.text;
    }
    EXPECT_EQ(shown(joined), shown(parser.answer()));
    EXPECT_EQ(parser.called_tools(), !joined.tool_calls.empty());
    return joined;
}

// Parses at once, byte by byte, and divided at every position.
void expect_answer(const AnswerFormat& format, std::string_view text, const std::string& expected) {
    ASSERT_EQ(shown(parsed(format, {text})), expected) << text;
    std::vector<std::string_view> bytes;
    for (size_t i = 0; i < text.size(); ++i) bytes.push_back(text.substr(i, 1));
    ASSERT_EQ(shown(parsed(format, bytes)), expected) << text;
    for (size_t a = 0; a <= text.size(); ++a)
        for (size_t b = a; b <= text.size(); b += 1 + text.size() / 24)
            ASSERT_EQ(shown(parsed(format, {text.substr(0, a), text.substr(a, b - a), text.substr(b)})), expected)
                << text << " cut at " << a << " and " << b;
}

}  // namespace

TEST(AnswerParser, Reasoning) {
    const AnswerFormat free = format_of("none"), open = format_of("none", true, true);
    expect_answer(free, "<think>\nLet me see. \n</think>\n\nHello <b>", "R[Let me see.] C[Hello <b>]");
    expect_answer(free, "Hello </think> <think>x", "R[] C[Hello </think> <think>x]");
    expect_answer(free, " <thin", "R[] C[ <thin]");
    expect_answer(free, "<think>", "R[] C[]");
    expect_answer(open, "a < b\n</thinker> </think> done ", "R[a < b\n</thinker>] C[done ]");
    expect_answer(open, "never ends </thi", "R[never ends </thi] C[]");
    expect_answer(format_of("none", false), "<think>x</think>y ", "R[] C[<think>x</think>y ]");
}

TEST(AnswerParser, HermesCalls) {
    const AnswerFormat format = format_of("hermes");
    expect_answer(
        format,
        "<think>\nhm\n</think>\n\nI look.\n<tool_call>\n{\"name\": \"get\", \"arguments\": {\"city\": \"</x> "
        "{\\\"\", \"n\": 1.50}}\n</tool_call>\n<tool_call>\n{\"name\": \"b\", \"arguments\": {}}\n</tool_call>",
        "R[hm] C[I look.] get({\"city\": \"</x> {\\\"\", \"n\": 1.50}) b({})");
    expect_answer(format, "<tool_call>{\"name\": \"f\"}</tool_call> and then", "R[] C[and then] f({})");
    expect_answer(format, "<tool_call>not json</tool_call> x", "R[] C[<tool_call>not json</tool_call> x]");
    expect_answer(format, "a <tool_ b", "R[] C[a <tool_ b]");
    // An incomplete answer keeps its text so far.
    expect_answer(format, "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"city\": \"Ber",
                  "R[] C[] get({\"city\": \"Ber)");
    expect_answer(format, "<tool_call>\n{\"na", "R[] C[<tool_call>\n{\"na]");
    expect_answer(format, "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
                  "R[] C[] f({\"a\": 1})");
}

TEST(AnswerParser, TaggedCalls) {
    AnswerFormat format = format_of("hermes");
    format.tool_list = *parse_json(
        R"([{"type":"function","function":{"name":"f","parameters":{"properties":{"s":{"type":"string"},"n":{"type":"integer"},"o":{"type":"object"}}}}}])");
    expect_answer(
        format,
        "<tool_call>\n<function=f>\n<parameter=s>\n12\n</parameter>\n<parameter=n>\n12\n</parameter>\n"
        "<parameter=o>\n{\"a\": [1]}\n</parameter>\n<parameter=x>\n1\n2\n</parameter>\n</function>\n</tool_call>",
        "R[] C[] f({\"s\":\"12\",\"n\":12,\"o\":{\"a\": [1]},\"x\":\"1\\n2\"})");
    expect_answer(format, "<tool_call>\n<function=f>\n<parameter=n>\n3\n</parameter>\n<parameter=s>\nhal",
                  "R[] C[] f({\"n\":3,\"s\":\"hal)");
    expect_answer(format, "<tool_call>\n<function=f>\n<parameter=s>\na\n</parameter>\n<parameter=n>\n3",
                  "R[] C[] f({\"s\":\"a\")");
    expect_answer(format, "<tool_call><function=g></function></tool_call> so", "R[] C[so] g({})");
    // The first of several parameters with one name counts.
    expect_answer(
        format,
        "<tool_call><function=f><parameter=s>a</parameter><parameter=s>b</parameter><parameter=n>1</parameter>"
        "<parameter=n>2</parameter></function></tool_call>",
        "R[] C[] f({\"s\":\"a\",\"n\":1})");
    // A tag inside a JSON string closes nothing; text that is not JSON ends at its first tag.
    expect_answer(format,
                  "<tool_call>\n<function=f>\n<parameter=o>\n[\"</parameter>\", \"</function>\"]\n</parameter>\n"
                  "<parameter=n>\n5\" long\n</parameter>\n</function>\n</tool_call>",
                  "R[] C[] f({\"o\":[\"</parameter>\", \"</function>\"],\"n\":\"5\\\" long\"})");
    expect_answer(format,
                  "<tool_call>\n<function=f>\n<parameter=s>\n\n a\"</p>\nü\n\n</parameter>\n</function>\n</tool_call>",
                  "R[] C[] f({\"s\":\"\\n a\\\"</p>\\nü\\n\"})");
}

TEST(AnswerParser, Llama3Calls) {
    const AnswerFormat format = format_of("llama3", false);
    expect_answer(format, "{\"name\": \"f\", \"parameters\": {\"a\": 1}}", "R[] C[] f({\"a\": 1})");
    expect_answer(
        format,
        "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {\"b\": \"{\"}}",
        "R[] C[] f({}) g({\"b\": \"{\"})");
    expect_answer(format, "{\"answer\": 3}", "R[] C[{\"answer\": 3}]");
    expect_answer(format, "Hello {\"name\": \"f\"}", "R[] C[Hello {\"name\": \"f\"}]");
    expect_answer(format, "{\"name\": \"f\", \"parameters\": {\"a\": ", "R[] C[] f({\"a\": )");
}

TEST(AnswerParser, MistralCalls) {
    const AnswerFormat format = format_of("mistral", false);
    expect_answer(format,
                  "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \"arguments\": {}, "
                  "\"id\": \"abcdefghi\"}]",
                  "R[] C[] f({\"a\": 1}) g({})");
    expect_answer(format, "I call.[TOOL_CALLS]f[ARGS]{\"a\": [1]}[TOOL_CALLS]g[CALL_ID]123456789[ARGS]{}",
                  "R[] C[I call.] f({\"a\": [1]}) g({})");
    expect_answer(format, "[TOOL_CALLS]f{\"a\": \"}", "R[] C[] f({\"a\": \"})");
    const auto answer = parsed(format, {"[TOOL_CALLS]f{}[TOOL_CALLS]g[CALL_ID]123456789[ARGS]{}"});
    ASSERT_EQ(answer.tool_calls.size(), 2u);
    EXPECT_EQ(answer.tool_calls[0].id.size(), 9u);
    EXPECT_EQ(answer.tool_calls[1].id.size(), 9u);
    EXPECT_NE(answer.tool_calls[1].id, "123456789");  // a model may write the same id twice
}

TEST(AnswerParser, NemotronCalls) {
    expect_answer(
        format_of("nemotron"),
        "<TOOLCALL>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \"arguments\": {}}]</TOOLCALL>",
        "R[] C[] f({\"a\": 1}) g({})");
    expect_answer(format_of("nemotron"), "<TOOLCALL>[]</TOOLCALL>", "R[] C[<TOOLCALL>[]</TOOLCALL>]");
}

TEST(AnswerParser, DeepSeekCalls) {
    expect_answer(
        format_of("deepseek_v3", true, true),
        "why</think>So.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": 1}\n"
        "```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>",
        "R[why] C[So.] f({\"a\": 1}) g({})");
    expect_answer(
        format_of("deepseek_v3"),
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "R[] C[] f({\"a\": 1})");
}

// Every piece of the arguments is returned when its text arrives, in all formats that write them unchanged.
TEST(AnswerParser, ArgumentsComeInPieces) {
    const std::vector<std::pair<std::string_view, std::string_view>> beginnings{
        {"hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": "},
        {"llama3", "{\"name\": \"f\", \"parameters\": "},
        {"mistral", "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": "},
        {"mistral", "[TOOL_CALLS]f[ARGS]"},
        {"nemotron", "<TOOLCALL>[{\"name\": \"f\", \"arguments\": "},
        {"deepseek_v3", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"},
        {"deepseek_v3", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>"},
        {"hermes", "<tool_call>\n<function=f>\n<parameter=s>\n"},
    };
    for (const auto& [name, beginning] : beginnings) {
        AnswerParser parser(std::make_unique<AnswerScanner>(format_of(name, false)));
        const bool tagged = beginning.find("<parameter") != beginning.npos;
        parser.push(beginning);
        EXPECT_EQ(parser.called_tools(), tagged) << beginning;
        std::string said = tagged ? "{\"s\":\"" : "";
        for (const std::string_view piece : {std::string_view("{\"a"), std::string_view("\": [1, 2")}) {
            const auto parts = parser.push(piece);
            ASSERT_FALSE(parts.empty()) << beginning;
            std::string text(piece);
            if (tagged && text.find('"') != text.npos) text.insert(text.find('"'), "\\");
            said += text;
            ASSERT_EQ(parser.answer().tool_calls.size(), 1u) << beginning;
            EXPECT_EQ(parser.answer().tool_calls[0].arguments, said) << beginning;
        }
    }
}

// Damaged, truncated, repeated and mixed calls: the concatenated parts never depend on the division.
TEST(AnswerParser, RandomAnswersInAnyPiecesGiveTheSameResult) {
    const std::vector<std::string_view> pieces{"<tool_call>",
                                               "</tool_call>",
                                               "{\"name\": \"f\", \"arguments\": ",
                                               "{\"name\": \"f\"",
                                               "{\"arguments\": {}, ",
                                               "\"name\": \"g\"}",
                                               "{\"a\": [1, \"}\"]}",
                                               "}",
                                               "]",
                                               "[",
                                               ", ",
                                               "\"",
                                               "\\",
                                               "\n",
                                               " x ",
                                               "<",
                                               "ü",
                                               "<|python_tag|>",
                                               "{\"name\": \"f\", \"parameters\": {}}",
                                               "[TOOL_CALLS]",
                                               "[ARGS]",
                                               "[CALL_ID]",
                                               "f",
                                               "{}",
                                               "<TOOLCALL>",
                                               "</TOOLCALL>",
                                               "<｜tool▁calls▁begin｜>",
                                               "<｜tool▁calls▁end｜>",
                                               "<｜tool▁call▁begin｜>",
                                               "<｜tool▁call▁end｜>",
                                               "<｜tool▁sep｜>",
                                               "```json",
                                               "```",
                                               "<function=f>",
                                               "</function>",
                                               "<parameter=s>",
                                               "<parameter=n>",
                                               "</parameter>",
                                               "<arg_key>s</arg_key>",
                                               "call:f{",
                                               "f(",
                                               "s=",
                                               "s:",
                                               "'",
                                               ")",
                                               "<|\"|>",
                                               "<|tool_call_end|>",
                                               "<tool_call|>",
                                               "<arg_value>",
                                               "</arg_value>",
                                               "<|tool_call_begin|>",
                                               "functions.f:0",
                                               "<|tool_call_argument_begin|>",
                                               "<|tool_call_end|>",
                                               "<invoke name=\"f\">",
                                               "</invoke>",
                                               "<parameter name=\"s\">",
                                               "<parameter name=\"n\">",
                                               "<｜DSML｜invoke name=\"f\">",
                                               "</｜DSML｜invoke>",
                                               "<｜DSML｜parameter name=\"s\" string=\"",
                                               "true\">",
                                               "false\">",
                                               "</｜DSML｜parameter>",
                                               "<think>",
                                               "</think>"};
    uint64_t state = 7;
    const auto next = [&](size_t below) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return size_t(state >> 33) % below;
    };
    for (int round = 0; round < 8000; ++round) {
        AnswerFormat format = format_of(tool_formats()[size_t(round) % tool_formats().size()].name, next(2) == 0);
        format.tool_list = *parse_json(
            R"([{"type":"function","function":{"name":"f","parameters":{"properties":{"s":{"type":"string"},"n":{"type":"integer"}}}}}])");
        std::string text = next(4) > 0 ? std::string(format.tools->begin) : "";
        for (size_t n = 1 + next(10); n > 0; --n) text += pieces[next(pieces.size())];
        const std::string expected = shown(parsed(format, {text}));
        std::vector<std::string_view> cut;
        for (size_t at = 0; at < text.size();) {
            const size_t n = std::min(text.size() - at, 1 + next(round % 3 == 0 ? 1 : 9));
            cut.push_back(std::string_view(text).substr(at, n));
            at += n;
        }
        ASSERT_EQ(shown(parsed(format, cut)), expected) << format.tools->name << ": " << text;
    }
}

// The token limit may end an answer at every byte of a call. Before the name is complete, nothing becomes content;
// after it, the call keeps its arguments so far. The same text in an answer that ended by itself stays content.
TEST(AnswerParser, AnIncompleteCallIsNotContent) {
    const std::pair<const char*, const char*> calls[] = {
        {"hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>"},
        {"hermes", "<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n</function>\n</tool_call>"},
        {"llama3", "{\"name\": \"f\", \"parameters\": {\"a\": 1}}"},
        {"llama3", "<|python_tag|>{\"name\": \"f\", \"parameters\": {\"a\": 1}}"},
        {"mistral", "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \"arguments\": {}}]"},
        {"mistral", "[TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]g[CALL_ID]123456789[ARGS]{}"},
        {"nemotron",
         "<TOOLCALL>[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", \"arguments\": {}}]</TOOLCALL>"},
        {"deepseek_v3",
         "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": "
         "1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"}};
    for (const auto& [name, text] : calls)
        for (const std::string lead : {"", "Well. "}) {
            if (std::string_view(name) == "llama3" && !lead.empty()) continue;
            const std::string whole = lead + text;
            for (size_t end = lead.size(); end <= whole.size(); ++end)
                for (const bool at_once : {true, false}) {
                    AnswerParser parser(std::make_unique<AnswerScanner>(format_of(name, false)));
                    std::string content;
                    const auto keep = [&](const std::vector<AnswerPart>& parts) {
                        for (const AnswerPart& part : parts)
                            if (part.kind == AnswerPart::Kind::content) content += part.text;
                    };
                    if (at_once)
                        keep(parser.push(std::string_view(whole).substr(0, end)));
                    else
                        for (size_t i = 0; i < end; ++i) keep(parser.push(std::string_view(whole).substr(i, 1)));
                    keep(parser.finish(true));
                    ASSERT_EQ(content, end == lead.size() ? lead : lead.substr(0, lead.empty() ? 0 : 5))
                        << whole.substr(0, end);
                }
        }
    for (const char* text : {"a <", "<tool_call>", "<tool_call>\n{\"na"})
        expect_answer(format_of("hermes", false), text, fmt::format("R[] C[{}]", text));
    AnswerParser object(std::make_unique<AnswerScanner>(format_of("llama3", false)));
    object.push("{\"answer\": \"f");
    object.finish(true);
    EXPECT_EQ(object.answer().content, "{\"answer\": \"f");
}

TEST(AnswerParser, IdsDifferByCallAndAnswer) {
    AnswerFormat format = format_of("hermes");
    const std::string_view text = "<tool_call>{\"name\": \"f\"}</tool_call><tool_call>{\"name\": \"f\"}</tool_call>";
    const auto one = parsed(format, {text}), again = parsed(format, {text});
    format.id_seed = "other";
    const auto other = parsed(format, {text});
    EXPECT_EQ(one.tool_calls[0].id, again.tool_calls[0].id);
    EXPECT_NE(one.tool_calls[0].id, one.tool_calls[1].id);
    EXPECT_NE(one.tool_calls[0].id, other.tool_calls[0].id);
}
