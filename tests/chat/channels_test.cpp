// Answers of GPT-OSS: messages with headers (OpenAI's harmony format, openai-gpt-oss-120b.jinja).
#include "chat/answer_parser.h"
#include "chat/answer_scanner.h"
#include "chat/chat_format.h"
#include "support/files.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

using namespace nibble;
using namespace nibble::test;

namespace {

std::string channels_read(std::string_view text, size_t step, bool tools = true, bool cut_off = false) {
    AnswerFormat format;
    format.channels = true;
    format.tools = tools ? find_tool_format("harmony") : nullptr;
    AnswerParser parser(std::make_unique<AnswerScanner>(format));
    for (size_t at = 0; at < text.size(); at += step) parser.push(text.substr(at, step));
    parser.finish(cut_off);
    const ParsedAnswer& answer = parser.answer();
    std::string out = "R[" + answer.reasoning + "] C[" + answer.content + "]";
    for (const ToolCall& call : answer.tool_calls) out += " " + call.name + "(" + call.arguments + ")";
    return out;
}

ChatFormat channels_format() {
    auto tokenizer = Tokenizer::from_folder(test_data("chat"));
    EXPECT_TRUE(tokenizer.ok());
    std::ifstream in(test_data("golden/chat_templates/openai-gpt-oss-120b.jinja"));
    std::stringstream source;
    source << in.rdbuf();
    auto chat = ChatTemplate::parse(source.str());
    EXPECT_TRUE(chat.ok());
    auto format =
        ChatFormat::create(*tokenizer, std::make_shared<const ChatTemplate>(*std::move(chat)), Json::object());
    EXPECT_TRUE(format.ok());
    return *std::move(format);
}

ChatRequest channels_request() {
    ChatRequest request;
    request.messages = *parse_json(R"([{"role":"user","content":"q"}])");
    return request;
}

const char* const channels_tools =
    R"([{"type":"function","function":{"name":"time","description":"d","parameters":{"type":"object","properties":{)"
    R"("zone":{"type":"string"}},"required":["zone"],"additionalProperties":false}}}])";

}  // namespace

TEST(Channels, MessagesAreReasoningContentAndCalls) {
    const std::string think = "<|channel|>analysis<|message|>", final = "<|channel|>final<|message|>";
    const std::string next = "<|end|><|start|>assistant";
    const std::string call = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>";
    const std::pair<std::string, const char*> cases[]{
        {think + "Hm. " + next + final + "Hi <b>", "R[Hm. ] C[Hi <b>]"},
        {think + "Hm." + next + final + "Hi<|return|>", "R[Hm.] C[Hi]"},
        {think + "a" + next + think + "b" + next + final + "c", "R[a\nb] C[c]"},
        {think + "Hm." + next + call + "{\"a\": \"<|x\"}<|call|>", "R[Hm.] C[] f({\"a\": \"<|x\"})"},
        // The template writes the recipient before the channel.
        {think + "Hm." + next + " to=functions.g.h-1<|channel|>commentary json<|message|>{}<|call|>",
         "R[Hm.] C[] g.h-1({})"},
        {"<|channel|>commentary<|message|>I look." + next + call + "{\"a\":1}", "R[] C[I look.] f({\"a\":1})"},
        {call + "{}<|call|><|start|>assistant" + call + "{\"b\":2}<|call|>", "R[] C[] f({}) f({\"b\":2})"},
        {call + "<|call|>", "R[] C[] f({})"},
        {call + "{\"a\": ", "R[] C[] f({\"a\": )"},
        // Answers without a header, and calls of tools that are not the request's.
        {"Hello", "R[] C[Hello]"},
        {"<|chan", "R[] C[<|chan]"},
        {"<|channel|>analysis to=python code<|message|>1+1<|call|>", "R[1+1] C[]"},
        {"<|channel|>final", "R[] C[]"},
        {final + "a<|end", "R[] C[a<|end]"},
        {"", "R[] C[]"}};
    for (const auto& [text, expected] : cases)
        for (const size_t step : {size_t(100000), size_t(1), size_t(5)})
            EXPECT_EQ(channels_read(text, step), expected) << text << " in pieces of " << step;
    EXPECT_EQ(channels_read(call + "{}", 1, false), "R[] C[{}]");
}

TEST(Channels, RandomAnswersInAnyPiecesGiveTheSameResult) {
    const std::vector<std::string_view> pieces{"<|channel|>",
                                               "analysis",
                                               "final",
                                               "commentary",
                                               " to=functions.f ",
                                               "<|message|>",
                                               "<|end|>",
                                               "<|call|>",
                                               "<|start|>",
                                               "assistant",
                                               "<|constrain|>",
                                               "json",
                                               "{\"a\"",
                                               "}",
                                               "<|",
                                               "<|channel|>analysis<|message|>",
                                               "ü",
                                               " \n"};
    uint64_t state = 3;
    const auto next = [&](size_t below) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return size_t(state >> 33) % below;
    };
    for (int round = 0; round < 3000; ++round) {
        std::string text;
        for (size_t n = 1 + next(12); n > 0; --n) text += pieces[next(pieces.size())];
        const std::string expected = channels_read(text, 100000);
        for (const size_t step : {size_t(1), size_t(2), size_t(9)})
            ASSERT_EQ(channels_read(text, step), expected) << text;
    }
}

TEST(Channels, TheTemplateOfGptOssDeterminesTheFormat) {
    const ChatFormat format = channels_format();
    EXPECT_EQ(format.tool_format(), "harmony");
    EXPECT_EQ(format.reasoning_format(), "harmony");
    const auto prompt = format.prompt(channels_request());
    ASSERT_TRUE(prompt.ok()) << prompt.error().message();
    AnswerParser parser = format.parser(channels_request(), *prompt);
    parser.push("<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b");
    parser.finish();
    EXPECT_EQ(parser.answer().reasoning + "|" + parser.answer().content, "a|b");
}

// A required call follows the reasoning, and an answer with a grammar the header of the final channel.
TEST(Channels, ConstraintsBeginAfterTheirHeaders) {
    const ChatFormat format = channels_format();
    std::vector<std::string> texts;
    for (int b = 0; b < 256; ++b) texts.emplace_back(1, char(b));
    const auto vocabulary = *GrammarVocabulary::of(texts);
    ChatRequest request = channels_request();
    const auto prompt = format.prompt(request);
    ASSERT_TRUE(prompt.ok());
    // Returns whether the constraint accepts the answer and whether it may end there.
    const auto taken = [&](const AnswerConstraint& constraint, const std::string& answer) {
        AnswerConstraint copy = constraint;
        std::vector<uint32_t> mask(vocabulary->words());
        for (const char c : answer) {
            const auto token = static_cast<unsigned char>(c);
            copy.mask(mask);
            EXPECT_EQ(AnswerConstraint(copy).accept(token), (mask[token / 32] >> (token % 32) & 1) != 0) << answer;
            if (!copy.accept(token)) return false;
        }
        return copy.may_end();
    };
    const std::string think = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant";
    const std::string final = "<|channel|>final<|message|>";
    const auto words = std::make_shared<const GrammarTokens>(*Grammar::from_regex("yes|no"), vocabulary);
    const auto answer = format.constraint(request, *prompt, vocabulary, words);
    ASSERT_TRUE(answer.ok() && *answer);
    EXPECT_TRUE(taken(**answer, think + final + "yes"));
    EXPECT_TRUE(taken(**answer, final + "no"));
    EXPECT_FALSE(taken(**answer, think + final));
    EXPECT_FALSE(taken(**answer, think + final + "x"));
    EXPECT_FALSE(taken(**answer, think));

    request.tools = *parse_json(channels_tools);
    request.tool_choice = ToolChoice::required;
    const auto call = format.constraint(request, *format.prompt(request), vocabulary);
    ASSERT_TRUE(call.ok() && *call);
    const std::string head = "<|channel|>commentary to=functions.time <|constrain|>json<|message|>";
    EXPECT_TRUE(taken(**call, think + head + "{\"zone\": \"UTC\"}"));
    EXPECT_TRUE(taken(**call, head + "{\"zone\": \"UTC\"}"));
    EXPECT_FALSE(taken(**call, think + head + "{}"));
    EXPECT_FALSE(taken(**call, think + final + "a"));
    EXPECT_FALSE(taken(**call, final));

    // The budget closes the reasoning and writes the header.
    request = channels_request();
    request.reasoning_budget = 0;
    const auto none = format.constraint(request, *prompt, vocabulary, words);
    ASSERT_TRUE(none.ok() && *none);
    EXPECT_FALSE(taken(**none, "<|channel|>analysis"));
}
