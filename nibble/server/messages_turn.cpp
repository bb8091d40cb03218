// POST /v1/messages: converts the conversation to the form of chat completions.
#include "server/tool_turn.h"

namespace nibble {
namespace {

std::string place_of(size_t message, size_t block) { return fmt::format("messages[{}].content[{}]", message, block); }

// Returns a text, or the texts of a list of blocks.
Result<std::string> block_texts(const Json& content, const std::string& place) {
    if (content.is_string()) return content.get<std::string>();
    if (!content.is_array()) return fail("{} is neither a text nor a list", place);
    std::string text;
    for (size_t i = 0; i < content.size(); ++i) {
        const Json& part = content[i];
        if (!part.is_object() || part.value("type", Json()) != "text" || !part.value("text", Json()).is_string())
            return fail("{}[{}] is not a text", place, i);
        if (i > 0) text += '\n';
        text += part["text"].get<std::string>();
    }
    return text;
}

// Converts a call. An input that is a text is from a call that was cut off.
Result<Json> call_of(const Json& block, const std::string& place) {
    const Json input = block.value("input", Json());
    if (!block.value("id", Json()).is_string() || !block.value("name", Json()).is_string() ||
        !(input.is_object() || input.is_string()))
        return fail("{}: a tool_use needs id, name and an object 'input'", place);
    return Json{
        {"id", block["id"]}, {"type", "function"}, {"function", {{"name", block["name"]}, {"arguments", input}}}};
}

// Converts one message of Anthropic's API to one or more of chat completions, where results of tools have their own
// role.
Status add_message(const Json& given, size_t number, Json& messages) {
    const Json role = given.is_object() ? given.value("role", Json()) : Json();
    if (role != "user" && role != "assistant") return fail("messages[{}].role is neither user nor assistant", number);
    const Json content = given.value("content", Json());
    if (!content.is_array()) {
        messages.push_back({{"role", role}, {"content", content}});
        return Ok{};
    }
    Json texts = Json::array(), calls = Json::array();
    const auto end_texts = [&] {
        if (!texts.empty()) messages.push_back({{"role", role}, {"content", std::exchange(texts, Json::array())}});
    };
    for (size_t i = 0; i < content.size(); ++i) {
        const Json& block = content[i];
        const std::string place = place_of(number, i);
        const Json type = block.is_object() ? block.value("type", Json()) : Json();
        if (type == "text") {
            texts.push_back({{"type", "text"}, {"text", block.value("text", Json())}});
        } else if (type == "tool_use" && role == "assistant") {
            NIBBLE_TRY(Json call, call_of(block, place));
            calls.push_back(std::move(call));
        } else if (type == "tool_result" && role == "user") {
            if (!block.value("tool_use_id", Json()).is_string()) return fail("{}.tool_use_id is missing", place);
            NIBBLE_TRY(std::string text, block_texts(block.value("content", Json("")), place + ".content"));
            end_texts();
            messages.push_back(
                {{"role", "tool"}, {"tool_call_id", block["tool_use_id"]}, {"content", std::move(text)}});
        } else if ((type == "thinking" || type == "redacted_thinking") && role == "assistant") {
            continue;  // reasoning of earlier turns, which templates do not repeat
        } else {
            return fail("{}: type {} is not supported in a message of {}", place, type.dump(), role.dump());
        }
    }
    if (role == "assistant") {  // added even if it is empty or contains only reasoning, because the turn must exist
        Json message{{"role", role}, {"content", std::move(texts)}};
        if (!calls.empty()) message["tool_calls"] = std::move(calls);
        messages.push_back(std::move(message));
        return Ok{};
    }
    if (content.empty()) return fail("messages[{}].content is empty", number);
    end_texts();
    return Ok{};
}

Result<Json> tools_of(const Json& given) {
    if (!given.is_array()) return fail("is not a list");
    Json tools = Json::array();
    for (size_t i = 0; i < given.size(); ++i) {
        const Json& tool = given[i];
        if (!tool.is_object()) return fail("[{}] is not an object", i);
        if (const Json type = tool.value("type", Json()); !type.is_null() && type != "custom")
            return fail("[{}].type {} is not supported: tools are functions of the client", i, type.dump());
        if (!tool.value("name", Json()).is_string()) return fail("[{}].name is missing", i);
        if (!tool.value("input_schema", Json()).is_object()) return fail("[{}].input_schema is missing", i);
        Json function{{"name", tool["name"]}, {"parameters", tool["input_schema"]}};
        for (const char* name : {"description", "strict"})
            if (tool.contains(name)) function[name] = tool[name];
        tools.push_back({{"type", "function"}, {"function", std::move(function)}});
    }
    return tools;
}

Status read_choice(const Json& given, ChatRequest& asked) {
    const Json type = given.is_object() ? given.value("type", Json()) : Json();
    Json choice;
    if (type == "auto" || type == "none")
        choice = type;
    else if (type == "any")
        choice = "required";
    else if (type == "tool")
        choice = {{"type", "function"}, {"function", {{"name", given.value("name", Json())}}}};
    else
        return fail("type is not auto, any, tool or none");
    if (const Json one = given.value("disable_parallel_tool_use", Json(false)); one.is_boolean())
        asked.parallel_tool_calls = !one.get<bool>();
    else
        return fail("disable_parallel_tool_use is neither true nor false");
    return read_tool_choice(choice, asked);
}

// Translates "thinking" to the template's variable and the budget of reasoning tokens. A model without reasoning
// accepts any budget.
Status read_thinking(BodyFields& fields, const ServedModel& model, MessagesTurn& turn, ChatRequest& asked) {
    const Json* given = fields.find("thinking");
    if (!given) return Ok{};
    if (!given->is_object()) return fields.bad("thinking", "is not an object");
    BodyFields inner(*given);
    std::string type;
    int64_t budget = 0;
    const auto read = [&]() -> Status {
        NIBBLE_CHECK(inner.read("type", type));
        if (type != "enabled" && type != "disabled" && type != "adaptive")
            return fail("type is not enabled, disabled or adaptive");
        NIBBLE_CHECK(inner.read_in("budget_tokens", budget, int64_t{1}, int64_t{1} << 40));
        if (type == "enabled" && budget == 0) return fail("budget_tokens is missing");
        if (type != "enabled" && budget > 0) return fail("budget_tokens requires type enabled");
        inner.ignore({"display"});
        return inner.all_read();
    };
    if (const Status done = read(); !done.ok()) return fields.bad("thinking", done.error().message());
    turn.thinking = type != "disabled";
    asked.template_variables = {{"enable_thinking", turn.thinking}};
    if (type != "adaptive" && model.format->reasoning_format() != "none") asked.reasoning_budget = budget;
    return Ok{};
}

}  // namespace

// The system prompt is not one of the messages, because it has no role.
Result<MessagesTurn> read_messages_turn(BodyFields& fields, const ServedModel& model, int64_t most_tokens) {
    const Json* given = fields.find("messages");
    if (!given || !given->is_array() || given->empty()) return fields.bad("messages", "is not a list of messages");
    for (const char* name : {"mcp_servers", "container", "output_config", "output_format"}) {
        const Json* value = fields.find(name);
        if (value) return fields.bad(name, "is not supported");
    }
    MessagesTurn turn;
    ChatRequest asked{.messages = Json::array()};
    if (const Json* system = fields.find("system")) {
        if (!system->is_string() && !system->is_array()) return fields.bad("system", "is not a text");
        asked.messages.push_back({{"role", "system"}, {"content", *system}});
    }
    for (size_t i = 0; i < given->size(); ++i)
        if (const Status added = add_message((*given)[i], i, asked.messages); !added.ok())
            return fields.bad("messages", added.error().message());
    // The answer continues a last message of the assistant.
    if (given->back()["role"] == "assistant") {
        const Json& last = asked.messages.back();
        if (last["role"] != "assistant" || last.contains("tool_calls"))
            return fields.bad("messages",
                              "the last message is the assistant's and has no text for the answer to continue");
        asked.continue_final_message = true;
        asked.generation_prompt = false;
    }
    if (const Json* tools = fields.find("tools")) {
        auto ours = tools_of(*tools);
        if (!ours.ok()) return fields.bad("tools", ours.error().message());
        if (!ours->empty()) asked.tools = *std::move(ours);
    }
    if (const Json* choice = fields.find("tool_choice"))
        if (const Status read = read_choice(*choice, asked); !read.ok())
            return fields.bad("tool_choice", read.error().message());
    NIBBLE_CHECK(check_tool_format(fields, model, asked));
    NIBBLE_CHECK(read_thinking(fields, model, turn, asked));
    asked.most_tokens = most_tokens;
    NIBBLE_TRY(turn.chat, make_chat_turn(fields, "messages", model, std::move(asked)));
    return turn;
}

}  // namespace nibble
