// How a model is talked to: its chat template, the formats in which it calls tools and thinks, and which tokens steer
// it. One ChatFormat serves all conversations with a model; all functions may be called from several threads.
//
//   NIBBLE_TRY(auto format, ChatFormat::create(tokenizer, template, variables));
//   NIBBLE_TRY(auto prompt, format.prompt(request));                       // tokens for the engine
//   NIBBLE_TRY(auto constraint, format.constraint(request, prompt, ...));  // null: the answer is free
//   AnswerParser parser = format.parser(request, prompt);                  // text of the answer, as it comes
//   for (piece of text) for (const AnswerPart& part : parser.push(piece)) ...
//   for (const AnswerPart& part : parser.finish()) ...
//
// No role injection: a control token of the prompt comes from characters that the template wrote. What messages, tools
// and template_variables hold is data: "<|im_start|>system" in it stays text, however the template cuts, joins or
// quotes it.
#pragma once

#include "base/error.h"
#include "base/json.h"
#include "chat/answer_parser.h"
#include "chat/constraint.h"
#include "chat/tool_format.h"
#include "text/chat_template.h"
#include "text/text_range.h"
#include "text/tokenizer.h"

#include <chrono>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace nibble {

enum class ToolChoice : uint8_t { none, automatic, required, named };

// What a client asks for, in the shapes of OpenAI's API.
struct ChatRequest {
    Json messages;  // [{"role", "content", ...}]
    Json tools;     // null, or [{"type": "function", "function": {"name", "description", "parameters"}}]
    ToolChoice tool_choice = ToolChoice::automatic;
    std::string tool_name;  // of ToolChoice::named
    bool parallel_tool_calls = true;
    size_t most_calls = SIZE_MAX;             // of tools in an answer that has to call one
    InputGrammars input_grammars;             // of tools that take a text
    Json template_variables;                  // null, or an object: "enable_thinking" and what else the template knows
    std::string chat_template;                // instead of the model's; empty: the model's
    bool generation_prompt = true;            // the beginning of an answer stands at the end
    bool continue_final_message = false;      // the answer continues the last message, which stays open
    bool control_tokens_in_data = false;      // the common behaviour: data may hold control tokens
    std::optional<int64_t> reasoning_budget;  // tokens of reasoning at most; 0: none
    std::optional<std::chrono::steady_clock::time_point> deadline = {};  // of prompt()
    std::optional<std::tm> now;  // what the template takes for the time; else the local time
};

// `tool_choice` of a request: null, "none", "auto", "required", {"type": "function", "function": {"name"}},
// {"type": "custom", "custom": {"name"}} or
// {"type": "allowed_tools", "allowed_tools": {"mode", "tools"}}, which takes all other tools out; sets tool_choice and
// tool_name. Error: another value, a tool that the request does not have.
Status read_tool_choice(const Json& value, ChatRequest& request);

struct ChatPrompt {
    std::string text;
    TextRanges data;  // bytes of `text` that come from the request
    std::vector<int32_t> tokens;
    bool thinking = false;  // the answer begins inside of reasoning: the prompt ends with the opening tag
};

struct ChatOptions {
    std::string tools = "auto";      // a name of tool_format_names(), "none", or "auto": from the template
    std::string reasoning = "auto";  // a name of reasoning_format_names(), "none", or "auto": from the template
    TemplateLimits limits;
    // Of a request's own template, which anybody may send: about a second of work at most.
    TemplateLimits request_limits{.max_steps = 2'000'000,
                                  .max_made_bytes = 64 << 20,
                                  .max_output_bytes = 16 << 20,
                                  .max_source_bytes = 256 << 10};
};

std::vector<std::string> tool_format_names();       // "hermes", "llama3", "mistral", "nemotron", "deepseek_v3" ...
std::vector<std::string> reasoning_format_names();  // "think", "deepseek_r1", "qwen3", "nemotron" ...

class ChatFormat {
public:
    // `variables`: of every rendering (bos_token ...); they are the model's, not data. Error: an unknown name.
    static Result<ChatFormat> create(Tokenizer tokenizer, std::shared_ptr<const ChatTemplate> chat, Json variables,
                                     const ChatOptions& options = {});

    // Errors name the place: "messages[3].content: ...", "tools[0].function.name: ...", "chat template: line 12: ...".
    Result<ChatPrompt> prompt(const ChatRequest& request) const;

    // What the answer is held to: a tool call where tool_choice demands one, else `answer` (of response_format; may be
    // null), else calls where the model makes some (holds_calls()), all after the reasoning; and the budget of the
    // reasoning. Null: the answer is free. Before an answer that is held to a grammar, the reasoning takes at most half
    // of `max_tokens`. Errors: both are wanted, a tool's parameters that no grammar can hold, a format of tool calls
    // that is not known.
    Result<std::shared_ptr<const AnswerConstraint>> constraint(const ChatRequest& request, const ChatPrompt& prompt,
                                                               std::shared_ptr<const GrammarVocabulary> vocabulary,
                                                               std::shared_ptr<const GrammarTokens> answer = nullptr,
                                                               int64_t max_tokens = INT64_MAX) const;

    // Whether calls that the model is free to make are held to a schema or a grammar: one of the tools is "strict":
    // true or takes a text with a grammar. The other tools then take any object. Not in llama3's format, whose calls
    // have no opening tag. Precondition: prompt() accepted the tools.
    static bool holds_calls(const ChatRequest& request);

    AnswerParser parser(const ChatRequest& request, const ChatPrompt& prompt) const;
    // Whether the engine has to print control tokens, so that the parser sees them (Request::skip_special = false).
    bool needs_control_tokens(const ChatRequest& request) const;

    const std::string& tool_format() const { return tools_; }           // "none": tool calls are not looked for
    const std::string& reasoning_format() const { return reasoning_; }  // "none"
    const Tokenizer& tokenizer() const { return tokenizer_; }

private:
    ChatFormat(Tokenizer tokenizer, std::shared_ptr<const ChatTemplate> chat, Json variables,
               const ChatOptions& options);
    Tokenizer tokenizer_;
    std::shared_ptr<const ChatTemplate> chat_;
    Json variables_;
    TemplateLimits limits_, request_limits_;
    std::vector<TokenId> control_;  // added tokens that steer, though the tokenizer does not call them special
    std::string tools_ = "none", reasoning_ = "none";
};

}  // namespace nibble
