#include "server/chat_turn.h"

#include "text/corpus.h"

#include <fmt/format.h>

#include <ctime>

namespace nibble {
namespace {

Result<std::string> joined_parts(const Json& parts, size_t message) {
    std::string text;
    for (size_t i = 0; i < parts.size(); ++i) {
        const Json& part = parts[i];
        const auto type = part.is_object() ? part.find("type") : part.end();
        if (!part.is_object() || type == part.end() || !type->is_string())
            return fail("messages[{}].content[{}]: has no type", message, i);
        const auto& name = type->get_ref<const std::string&>();
        if (name != "text" && name != "input_text" && name != "output_text")
            return fail("messages[{}].content[{}]: type '{}' is not supported; only text is", message, i, name);
        const auto value = part.find("text");
        if (value == part.end() || !value->is_string())
            return fail("messages[{}].content[{}]: has no text", message, i);
        if (i > 0) text += '\n';
        text += value->get_ref<const std::string&>();
    }
    return text;
}

}  // namespace

std::vector<AnswerPart> AnswerReader::push(std::string_view text) {
    if (text.empty()) return {};
    return {AnswerPart{.kind = AnswerPart::Kind::content, .text = std::string(text)}};
}

Result<Json> plain_messages(const Json& messages) {
    NIBBLE_CHECK(check_messages(messages));
    Json out = messages;
    for (size_t i = 0; i < out.size(); ++i) {
        Json& message = out[i];
        const auto role = message.find("role");
        if (role != message.end() && *role == "developer") *role = "system";
        const auto content = message.find("content");
        if (content == message.end() || !content->is_array()) continue;
        NIBBLE_TRY(*content, joined_parts(*content, i));
    }
    return out;
}

Result<ChatTurn> make_chat_turn(const ServedModel& model, const Json& messages, const TurnOptions& options) {
    if (!model.chat) return fail("the model has no chat template; use /v1/completions");
    Json variables = model.variables;
    for (const auto& [name, value] : options.variables.items()) variables[name] = value;
    NIBBLE_TRY(variables["messages"], plain_messages(messages));
    variables["add_generation_prompt"] = options.generation_prompt;
    const std::time_t seconds = std::time(nullptr);
    std::tm now{};
    localtime_r(&seconds, &now);
    NIBBLE_TRY(std::string text, model.chat->render(variables, now).within("chat template"));
    NIBBLE_TRY(const auto ids, model.tokenizer.encode(text, {.add_special = options.special}));
    return ChatTurn{std::move(text), {ids.begin(), ids.end()}};
}

Result<ChatTurn> read_chat_turn(BodyFields& fields, const ServedModel& model, Request&) {
    const Json* messages = fields.find("messages");
    if (!messages) return fields.bad("messages", "is missing");
    for (const char* name :
         {"tools", "tool_choice", "functions", "function_call", "response_format", "structured_outputs", "guided_json",
          "guided_regex", "guided_choice", "guided_grammar", "chat_template", "continue_final_message", "modalities",
          "audio", "prediction", "web_search_options", "reasoning_effort", "thinking_token_budget", "documents"}) {
        const Json* value = fields.find(name);
        if (!value) continue;
        const bool neutral = *value == false || *value == "none" || (value->is_array() && value->empty()) ||
                             *value == Json{{"type", "text"}} || *value == Json::array({"text"});
        if (!neutral) return fields.bad(name, "is not supported");
    }
    fields.ignore({"parallel_tool_calls"});
    TurnOptions options;
    if (const Json* more = fields.find("chat_template_kwargs")) {
        if (!more->is_object()) return fields.bad("chat_template_kwargs", "is not an object");
        options.variables = *more;
    }
    NIBBLE_CHECK(fields.read("add_generation_prompt", options.generation_prompt));
    NIBBLE_CHECK(fields.read("add_special_tokens", options.special));
    auto turn = make_chat_turn(model, *messages, options);
    if (!turn.ok()) return fields.bad("messages", turn.error().message());
    return turn;
}

}  // namespace nibble
