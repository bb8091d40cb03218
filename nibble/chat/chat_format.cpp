#include "chat/chat_format.h"

#include "chat/answer_scanner.h"
#include "chat/chat_request.h"
#include "chat/control_tokens.h"

#include <algorithm>
#include <random>

namespace nibble {
namespace {

struct ReasoningFormat {
    std::string_view name, begin, end;
    // Text with which the answer begins after the reasoning, and text that closes reasoning before it; empty: none.
    std::string_view answer = {}, close = {};
};
// A chat template has the first format whose opening or closing tag it contains; for harmony, whose closing tag is the
// end of any message, only the opening tag counts. In some models the template writes the opening tag, in others the
// model; the prompt shows which.
constexpr ReasoningFormat reasoning_formats[]{{"think", "<think>", "</think>"},
                                              {"deepseek_r1", "<think>", "</think>"},
                                              {"qwen3", "<think>", "</think>"},
                                              {"nemotron", "<think>", "</think>"},
                                              {"mistral", "[THINK]", "[/THINK]"},
                                              {"seed_oss", "<seed:think>", "</seed:think>"},
                                              {"harmony", "<|channel|>analysis<|message|>", "<|end|>",
                                               "<|channel|>final<|message|>", "<|end|><|start|>assistant"},
                                              {"gemma4", "<|channel>thought", "<channel|>"}};

const ReasoningFormat* find_reasoning(std::string_view name) {
    for (const ReasoningFormat& format : reasoning_formats)
        if (format.name == name) return &format;
    return nullptr;
}

// The name of the format of messages with headers, for calls as for reasoning.
constexpr std::string_view channel_format = "harmony";

std::string_view detected_reasoning(std::string_view chat_template) {
    for (const ReasoningFormat& format : reasoning_formats)
        if (chat_template.find(format.begin) != chat_template.npos ||
            (format.answer.empty() && chat_template.find(format.end) != chat_template.npos))
            return format.name;
    return "none";
}

bool uses_tools(const ChatRequest& request) {
    return request.tools.is_array() && !request.tools.empty() && request.tool_choice != ToolChoice::none;
}

// Returns true if calls of a tool must match its schema or grammar even if the model need not call it.
bool is_held(const Json& tool, const InputGrammars& grammars) {
    const Json& function = tool["function"];
    return function.value("strict", Json()) == true || grammars.contains(function["name"].get<std::string>());
}

// Returns the tools that an answer may call. If calls are voluntary, the arguments of an unconstrained tool may be any
// object.
Json callable_tools(const ChatRequest& request) {
    Json tools = Json::array();
    for (const Json& tool : request.tools) {
        if (request.tool_choice == ToolChoice::named && tool["function"]["name"] != request.tool_name) continue;
        tools.push_back(tool);
        if (request.tool_choice == ToolChoice::automatic && !is_held(tool, request.input_grammars))
            tools.back()["function"]["parameters"] = {{"type", "object"}, {"additionalProperties", true}};
    }
    return tools;
}

std::string_view without_end_blanks(std::string_view text) {
    const size_t last = text.find_last_not_of(" \t\r\n");
    return text.substr(0, last == text.npos ? 0 : last + 1);
}

std::string random_seed() {
    std::random_device device;
    return fmt::format("{:08x}{:08x}{:08x}{:08x}", device(), device(), device(), device());
}

// Returns a text that occurs neither in the data nor in the template. It is put at the end of the last message while
// the template runs, as in transformers, to find where that message ends. Its last character is a space, which shows
// whether the template strips spaces at the end of messages.
std::string final_mark(const Json& data, std::string_view source) {
    const std::string text = data.dump(-1, ' ', false, Json::error_handler_t::replace);
    std::string mark;
    for (int i = 0; mark.empty() || text.find(mark) != text.npos || source.find(mark) != source.npos; ++i)
        mark = fmt::format("continued-final-message-{}", i);
    return mark + " ";
}

// Removes the mark and everything after it.
Status cut_at(const std::string& mark, Rendering& rendering) {
    const size_t at = rendering.text.rfind(mark.substr(0, mark.size() - 1));
    if (at == std::string::npos)
        return fail("continue_final_message: the chat template does not write the last message's content as it is");
    const bool trims = rendering.text.compare(at, mark.size(), mark) != 0;
    rendering.text.resize(at);
    if (trims) rendering.text.resize(without_end_blanks(rendering.text).size());
    std::erase_if(rendering.data, [&](const TextRange& range) { return range.begin >= rendering.text.size(); });
    if (!rendering.data.empty()) rendering.data.back().end = std::min(rendering.data.back().end, rendering.text.size());
    return Ok{};
}

}  // namespace

std::vector<std::string> tool_format_names() {
    std::vector<std::string> out;
    for (const ToolFormat& format : tool_formats()) out.emplace_back(format.name);
    return out;
}

std::vector<std::string> reasoning_format_names() {
    std::vector<std::string> out;
    for (const ReasoningFormat& format : reasoning_formats) out.emplace_back(format.name);
    return out;
}

ChatFormat::ChatFormat(Tokenizer tokenizer, std::shared_ptr<const ChatTemplate> chat, Json variables,
                       const ChatOptions& options)
    : tokenizer_(std::move(tokenizer)),
      chat_(std::move(chat)),
      variables_(std::move(variables)),
      limits_(options.limits),
      request_limits_(options.request_limits),
      control_(control_tokens(tokenizer_)) {}

Result<ChatFormat> ChatFormat::create(Tokenizer tokenizer, std::shared_ptr<const ChatTemplate> chat, Json variables,
                                      const ChatOptions& options) {
    ChatFormat out(std::move(tokenizer), std::move(chat), std::move(variables), options);
    const std::string_view source = out.chat_ ? std::string_view(out.chat_->source()) : std::string_view();
    out.tools_ = options.tools;
    if (options.tools == "auto") {
        const ToolFormat* found = tool_format_of(source);
        out.tools_ = found ? found->name : "none";
    } else if (options.tools != "none" && !find_tool_format(options.tools)) {
        return fail("unknown format of tool calls '{}'", options.tools);
    }
    out.reasoning_ = options.reasoning;
    if (options.reasoning == "auto")
        out.reasoning_ = detected_reasoning(source);
    else if (options.reasoning != "none" && !find_reasoning(options.reasoning))
        return fail("unknown format of reasoning '{}'", options.reasoning);
    return out;
}

Result<ChatPrompt> ChatFormat::prompt(const ChatRequest& request) const {
    std::shared_ptr<const ChatTemplate> chat = chat_;
    const bool own = !request.chat_template.empty();
    const TemplateLimits& limits = own ? request_limits_ : limits_;
    if (own) {
        NIBBLE_TRY(auto parsed, ChatTemplate::parse(request.chat_template, limits).within("chat_template"));
        chat = std::make_shared<const ChatTemplate>(std::move(parsed));
    }
    if (!chat) return fail("the model has no chat template, and the request has none (chat_template)");
    NIBBLE_TRY(Json messages,
               checked_messages(request.messages, chat->source().find("developer") != std::string::npos));
    NIBBLE_CHECK(check_tools(request.tools));
    Json data = Json::object();
    if (request.template_variables.is_object())
        data = request.template_variables;
    else if (!request.template_variables.is_null())
        return fail("chat_template_kwargs: is not an object");
    if (uses_tools(request)) data["tools"] = request.tools;
    std::string mark;
    if (request.continue_final_message) {
        if (request.generation_prompt)
            return fail("continue_final_message: cannot be combined with add_generation_prompt");
        if (messages.back()["role"] != "assistant")
            return fail("continue_final_message: messages[{}] is not the assistant's", messages.size() - 1);
        mark = final_mark({data, messages, variables_}, chat->source());
        messages.back()["content"].get_ref<std::string&>() += mark;
    }
    data["messages"] = std::move(messages);
    data["add_generation_prompt"] = request.generation_prompt;
    std::optional<std::tm> now = request.now;
    if (!now) {
        const std::time_t seconds = std::time(nullptr);
        localtime_r(&seconds, &now.emplace());
    }
    const auto render = [&] {
        Meter meter({.steps = limits.max_steps,
                     .bytes = limits.max_made_bytes,
                     .deadline = request.deadline,
                     .cancel = request.cancel});
        return chat->render(variables_, data, now, meter).within(own ? "chat_template" : "chat template");
    };
    Result<Rendering> rendered = render();
    if (!rendered.ok() && rendered.error().kind() != ErrorKind::cancelled && wrap_text_arguments(data["messages"]))
        rendered = render();
    NIBBLE_TRY(Rendering rendering, std::move(rendered));
    if (request.continue_final_message) NIBBLE_CHECK(cut_at(mark, rendering));

    ChatPrompt out{.text = std::move(rendering.text), .data = std::move(rendering.data)};
    EncodeOptions options;
    if (!request.control_tokens_in_data) options = {.data = &out.data, .control = control_};
    MeterLimits tokenizing = MeterLimits::for_text(out.text.size());
    tokenizing.deadline = request.deadline;
    tokenizing.cancel = request.cancel;
    tokenizing.tokens = request.most_tokens;
    Meter encoding(tokenizing);
    NIBBLE_TRY(const auto ids, tokenizer_.encode(out.text, options, encoding));
    out.tokens.assign(ids.begin(), ids.end());
    if (const ReasoningFormat* format = find_reasoning(reasoning_); format && request.generation_prompt)
        out.thinking = without_end_blanks(out.text).ends_with(format->begin);
    return out;
}

Result<std::shared_ptr<const AnswerConstraint>> ChatFormat::constraint(
    const ChatRequest& request, const ChatPrompt& prompt, std::shared_ptr<const GrammarVocabulary> vocabulary,
    std::shared_ptr<const GrammarTokens> answer, int64_t max_tokens) const {
    const bool answers = answer != nullptr;
    std::shared_ptr<const GrammarTokens> grammar = std::move(answer);
    std::string opening;
    const bool demanded = request.tool_choice == ToolChoice::required || request.tool_choice == ToolChoice::named;
    if (demanded || (holds_calls(request) && !grammar)) {
        if (grammar) return fail("tool_choice: cannot be combined with another constraint of the answer");
        const ToolFormat* format = find_tool_format(tools_);
        if (!format) return fail("tool_choice: the model's chat template has no known format of tool calls");
        const Json tools = callable_tools(request);
        if (tools.empty()) return fail("tool_choice: the request has no tools");
        const bool parallel = request.parallel_tool_calls && request.tool_choice != ToolChoice::named;
        const size_t most = std::min<size_t>(parallel ? 16 : 1, std::max<size_t>(request.most_calls, 1));
        const std::string_view source = chat_ ? std::string_view(chat_->source()) : std::string_view();
        NIBBLE_TRY(const auto structure,
                   Grammar::from_structure(
                       tool_structure(*format, tools, most, source, tokenizer_, request.input_grammars, demanded),
                       answer_schema)
                       .within("tools"));
        // In a format without an opening tag, calls look like any JSON, which a free answer may contain.
        if (demanded || !format->begin.empty()) grammar = std::make_shared<const GrammarTokens>(structure, vocabulary);
        if (!demanded) opening = format->begin;
    }
    std::optional<ReasoningGate> gate;
    const ReasoningFormat* format = find_reasoning(reasoning_);
    // A template that disables thinking has written an empty reasoning part.
    if (format && !without_end_blanks(prompt.text).ends_with(format->end) && (grammar || request.reasoning_budget)) {
        gate.emplace();
        gate->open = prompt.thinking;
        gate->begin = format->begin;
        gate->end = format->end;
        std::string close(format->end);
        if (answers && !format->answer.empty()) {
            // All before the answer's own header is reasoning.
            gate->open = true;
            gate->end = format->answer;
            close = request.reasoning_budget == 0 ? "" : format->close;
            close += format->answer;
        }
        gate->budget = request.reasoning_budget;
        if (grammar && opening.empty()) gate->budget = std::min(gate->budget.value_or(INT64_MAX), max_tokens / 2);
        NIBBLE_TRY(const auto ids, tokenizer_.encode(close));
        gate->end_tokens.assign(ids.begin(), ids.end());
    }
    if (!grammar && !gate) return std::shared_ptr<const AnswerConstraint>();
    return std::make_shared<const AnswerConstraint>(std::move(gate), std::move(grammar), std::move(vocabulary),
                                                    opening);
}

bool ChatFormat::writes_tools(const ChatRequest& request) const {
    const std::string_view own = request.chat_template, model = chat_ ? std::string_view(chat_->source()) : "";
    return (own.empty() ? model : own).find("tools") != own.npos;
}

AnswerParser ChatFormat::parser(const ChatRequest& request, const ChatPrompt& prompt) const {
    AnswerFormat format;
    if (const ReasoningFormat* reasoning = find_reasoning(reasoning_);
        reasoning && !without_end_blanks(prompt.text).ends_with(reasoning->end)) {
        format.think_begin = reasoning->begin;
        format.think_end = reasoning->end;
        format.thinking = prompt.thinking;
    }
    format.channels = reasoning_ == channel_format || (uses_tools(request) && tools_ == channel_format);
    if (uses_tools(request)) {
        format.tools = find_tool_format(tools_);
        format.tool_list = request.tools;
        format.id_seed = random_seed();
        for (const Json& message : request.messages)
            if (const auto calls = message.find("tool_calls"); calls != message.end() && calls->is_array())
                format.earlier_calls += calls->size();
    }
    return AnswerParser(std::make_unique<AnswerScanner>(std::move(format)));
}

bool ChatFormat::holds_calls(const ChatRequest& request) {
    return request.tool_choice == ToolChoice::automatic && request.tools.is_array() &&
           std::ranges::any_of(request.tools, [&](const Json& tool) { return is_held(tool, request.input_grammars); });
}

bool ChatFormat::needs_control_tokens(const ChatRequest& request) const {
    const ReasoningFormat* reasoning = find_reasoning(reasoning_);
    if (reasoning &&
        (holds_control_token(tokenizer_, reasoning->begin) || holds_control_token(tokenizer_, reasoning->end)))
        return true;
    const ToolFormat* tools = uses_tools(request) ? find_tool_format(tools_) : nullptr;
    if (!tools) return false;
    return tools->begin.empty()
               ? holds_control_token(tokenizer_, tools->lead)
               : holds_control_token(tokenizer_, tools->begin) || holds_control_token(tokenizer_, tools->end);
}

}  // namespace nibble
