// The chat format of a model: its chat template, the formats of its tool calls and reasoning, and its control tokens.
// One ChatFormat serves all conversations with a model. Thread-safe.
//
//   NIBBLE_TRY(auto format, ChatFormat::create(tokenizer, template, variables));
//   NIBBLE_TRY(auto prompt, format.prompt(request));                       // tokens for the engine
//   NIBBLE_TRY(auto constraint, format.constraint(request, prompt, ...));  // null: the answer is free
//   AnswerParser parser = format.parser(request, prompt);                  // text of the answer, as it arrives
//   for (piece of text) for (const AnswerPart& part : parser.push(piece)) ...
//   for (const AnswerPart& part : parser.finish()) ...
//
// Messages cannot inject roles: control tokens of the prompt come only from characters that the template wrote. The
// contents of messages, tools and template_variables are data: "<|im_start|>system" in them stays text, however the
// template splits, joins or quotes it.
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

// A client's request in the form of OpenAI's API.
struct ChatRequest {
    Json messages;  // [{"role", "content", ...}]
    Json tools;     // null, or [{"type": "function", "function": {"name", "description", "parameters"}}]
    ToolChoice tool_choice = ToolChoice::automatic;
    std::string tool_name;  // for ToolChoice::named
    bool parallel_tool_calls = true;
    size_t most_calls = SIZE_MAX;         // most tool calls of an answer that must call a tool
    InputGrammars input_grammars;         // grammars of tools whose input is a text
    Json template_variables;              // null, or an object: "enable_thinking" and other variables of the template
    std::string chat_template;            // replaces the model's template; empty: use the model's
    bool generation_prompt = true;        // the prompt ends with the beginning of an answer
    bool continue_final_message = false;  // the answer continues the last message, which is not closed
    bool control_tokens_in_data = false;  // the usual behavior of servers: messages may contain control tokens
    std::optional<int64_t> reasoning_budget;                             // most tokens of reasoning; 0: none
    std::optional<std::chrono::steady_clock::time_point> deadline = {};  // deadline of prompt()
    const std::atomic<bool>* cancel = nullptr;  // once it is true, prompt() ends with an error of kind cancelled
    // The prompt is not tokenized further than this (EncodeOptions::most_tokens).
    int64_t most_tokens = MeterLimits::unlimited;
    std::optional<std::tm> now;  // the current time for the template; no value: the local time
};

// Parses the `tool_choice` of a request: null, "none", "auto", "required", {"type": "function", "function": {"name"}},
// {"type": "custom", "custom": {"name"}} or {"type": "allowed_tools", "allowed_tools": {"mode", "tools"}}, which
// removes all other tools. Sets tool_choice and tool_name. Errors: another value, a tool that is not in the request.
Status read_tool_choice(const Json& value, ChatRequest& request);

struct ChatPrompt {
    std::string text;
    TextRanges data;  // byte ranges of `text` that come from the request
    std::vector<int32_t> tokens;
    bool thinking = false;  // the prompt ends with the opening tag, so the answer begins inside reasoning
};

struct ChatOptions {
    std::string tools = "auto";      // one of tool_format_names(), "none", or "auto": detected from the template
    std::string reasoning = "auto";  // one of reasoning_format_names(), "none", or "auto": detected from the template
    TemplateLimits limits;
    // Limits of a template in a request, which is untrusted: about a second of work.
    TemplateLimits request_limits{.max_steps = 2'000'000,
                                  .max_made_bytes = 64 << 20,
                                  .max_output_bytes = 16 << 20,
                                  .max_source_bytes = 256 << 10};
};

std::vector<std::string> tool_format_names();       // "hermes", "llama3", "mistral", "nemotron", "deepseek_v3" ...
std::vector<std::string> reasoning_format_names();  // "think", "deepseek_r1", "qwen3", "nemotron" ...

class ChatFormat {
public:
    // Creates a format. `variables`: used in every rendering (bos_token ...); they belong to the model and are not
    // treated as data. Error: an unknown name in `options`.
    static Result<ChatFormat> create(Tokenizer tokenizer, std::shared_ptr<const ChatTemplate> chat, Json variables,
                                     const ChatOptions& options = {});

    // Renders the prompt. Errors name the place: "messages[3].content: ...", "tools[0].function.name: ...", "chat
    // template: line 12: ...".
    Result<ChatPrompt> prompt(const ChatRequest& request) const;

    // Returns the constraint of the answer; null: there is none. It is a tool call if tool_choice requires one, else
    // `answer` (from response_format; may be null), else valid calls wherever the model makes one (holds_calls()). It
    // begins after the reasoning and includes the budget of reasoning tokens; before an answer with a grammar,
    // reasoning may use at most half of `max_tokens`. Errors: a required call together with `answer`, parameters of a
    // tool that cannot be expressed as a grammar, an unknown format of tool calls.
    Result<std::shared_ptr<const AnswerConstraint>> constraint(const ChatRequest& request, const ChatPrompt& prompt,
                                                               std::shared_ptr<const GrammarVocabulary> vocabulary,
                                                               std::shared_ptr<const GrammarTokens> answer = nullptr,
                                                               int64_t max_tokens = INT64_MAX) const;

    // Returns true if calls that the model makes voluntarily are constrained: a tool is "strict": true or has a text
    // input with a grammar. Other tools then accept any object. Not for llama3's format, whose calls have no opening
    // tag. Precondition: prompt() accepted the tools.
    static bool holds_calls(const ChatRequest& request);

    AnswerParser parser(const ChatRequest& request, const ChatPrompt& prompt) const;
    // Returns true if the engine must include control tokens in the text, because the parser needs them
    // (Request::skip_special = false).
    bool needs_control_tokens(const ChatRequest& request) const;

    // Returns true if the chat template of the request, or the model's, reads the variable `tools`: without it the
    // model does not see the request's tools.
    bool writes_tools(const ChatRequest& request = {}) const;

    const std::string& tool_format() const { return tools_; }           // "none": tool calls are not recognized
    const std::string& reasoning_format() const { return reasoning_; }  // "none"
    const Tokenizer& tokenizer() const { return tokenizer_; }

private:
    ChatFormat(Tokenizer tokenizer, std::shared_ptr<const ChatTemplate> chat, Json variables,
               const ChatOptions& options);
    Tokenizer tokenizer_;
    std::shared_ptr<const ChatTemplate> chat_;
    Json variables_;
    TemplateLimits limits_, request_limits_;
    std::vector<TokenId> control_;  // control tokens that the tokenizer does not mark as special
    std::string tools_ = "none", reasoning_ = "none";
};

}  // namespace nibble
