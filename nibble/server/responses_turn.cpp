// POST /v1/responses: its input in the words of chat completions.
#include "server/tool_turn.h"

#include <functional>

namespace nibble {
namespace {

bool has_text(const Json& item, const char* name) { return item.value(name, Json()).is_string(); }

// Calls that follow each other, and the answer's text before them, are one message.
Status add_call(const Json& item, Json& messages) {
    if (!has_text(item, "call_id") || !has_text(item, "name") || !has_text(item, "arguments"))
        return fail("a function_call has call_id, name and arguments");
    if (messages.empty() || messages.back().value("role", Json()) != "assistant")
        messages.push_back({{"role", "assistant"}, {"content", nullptr}});
    Json& message = messages.back();
    if (!message.contains("tool_calls")) message["tool_calls"] = Json::array();
    message["tool_calls"].push_back({{"id", item["call_id"]},
                                     {"type", "function"},
                                     {"function", {{"name", item["name"]}, {"arguments", item["arguments"]}}}});
    return Ok{};
}

Status add_output(const Json& item, Json& messages) {
    if (!has_text(item, "call_id")) return fail("a function_call_output has a call_id");
    const Json output = item.value("output", Json());
    std::string text;
    if (output.is_string()) {
        text = output.get<std::string>();
    } else if (output.is_array()) {
        for (const Json& part : output) {
            if (!part.is_object() || !has_text(part, "text")) return fail("an output is a text or a list of texts");
            if (!text.empty()) text += '\n';
            text += part["text"].get<std::string>();
        }
    } else {
        return fail("an output is a text or a list of texts");
    }
    messages.push_back({{"role", "tool"}, {"tool_call_id", item["call_id"]}, {"content", std::move(text)}});
    return Ok{};
}

Status add_item(const Json& item, Json& messages) {
    if (!item.is_object()) return fail("is no object");
    const Json type = item.value("type", Json("message"));
    if (type == "function_call") return add_call(item, messages);
    if (type == "function_call_output") return add_output(item, messages);
    if (type == "reasoning") return Ok{};  // of earlier turns, which templates do not repeat
    if (type != "message") return fail("type {} is not supported", type.dump());
    Json message = Json::object();
    for (const char* name : {"role", "content"})
        if (item.contains(name)) message[name] = item[name];
    messages.push_back(std::move(message));
    return Ok{};
}

Result<Json> messages_of_input(BodyFields& fields) {
    Json messages = Json::array();
    std::string instructions;
    NIBBLE_CHECK(fields.read("instructions", instructions));
    if (!instructions.empty()) messages.push_back({{"role", "system"}, {"content", instructions}});
    const Json* input = fields.find("input");
    if (!input) return fields.bad("input", "is missing");
    if (input->is_string()) {
        messages.push_back({{"role", "user"}, {"content", *input}});
        return messages;
    }
    if (!input->is_array()) return fields.bad("input", "is neither a text nor a list");
    for (size_t i = 0; i < input->size(); ++i)
        if (const Status added = add_item((*input)[i], messages); !added.ok())
            return fields.bad("input", fmt::format("[{}]: {}", i, added.error().message()));
    return messages;
}

Result<Json> tools_of_list(const Json& given) {
    if (!given.is_array()) return fail("is not a list");
    Json tools = Json::array();
    for (size_t i = 0; i < given.size(); ++i) {
        const Json& tool = given[i];
        if (!tool.is_object() || tool.value("type", Json()) != "function")
            return fail("[{}].type {} is not supported: tools are functions of the client", i,
                        tool.is_object() ? tool.value("type", Json()).dump() : "");
        if (!has_text(tool, "name")) return fail("[{}].name is missing", i);
        Json function{{"name", tool["name"]}};
        for (const char* name : {"description", "parameters"})
            if (const Json value = tool.value(name, Json()); !value.is_null()) function[name] = value;
        tools.push_back({{"type", "function"}, {"function", std::move(function)}});
    }
    return tools;
}

// A word for the chat template out of the object that this API keeps it in. `beside`: what else may stand there.
Status read_word(BodyFields& fields, const char* field, const char* name, const char* variable, ChatRequest& asked,
                 const std::function<Status(BodyFields&)>& beside) {
    const Json* object = fields.find(field);
    if (!object) return Ok{};
    if (!object->is_object()) return fields.bad(field, "is not an object");
    BodyFields inner(*object);
    const auto read = [&]() -> Status {
        NIBBLE_CHECK(read_template_word(inner, name, variable, asked));
        NIBBLE_CHECK(beside(inner));
        return inner.all_read();
    };
    if (const Status done = read(); !done.ok()) return fields.bad(field, done.error().message());
    return Ok{};
}

}  // namespace

Result<ChatTurn> read_responses_turn(BodyFields& fields, const ServedModel& model) {
    ChatRequest asked;
    NIBBLE_TRY(asked.messages, messages_of_input(fields));
    if (const Json* tools = fields.find("tools")) {
        auto ours = tools_of_list(*tools);
        if (!ours.ok()) return fields.bad("tools", ours.error().message());
        if (!ours->empty()) asked.tools = *std::move(ours);
    }
    if (const Json* given = fields.find("tool_choice")) {
        // Its objects are flat where those of /v1/chat/completions have a level more.
        const auto nested = [](const Json& function) {
            return Json{{"type", "function"}, {"function", {{"name", function.value("name", Json())}}}};
        };
        Json choice = *given;
        if (choice.is_object() && choice.value("type", Json()) == "function") choice = nested(choice);
        if (choice.is_object() && choice.value("type", Json()) == "allowed_tools") {
            Json allowed = choice;
            if (allowed.contains("tools") && allowed["tools"].is_array())
                for (Json& tool : allowed["tools"])
                    if (tool.is_object() && tool.value("type", Json()) == "function") tool = nested(tool);
            choice = {{"type", "allowed_tools"}, {"allowed_tools", std::move(allowed)}};
        }
        if (const Status read = read_tool_choice(choice, asked); !read.ok())
            return fields.bad("tool_choice", read.error().message());
    }
    NIBBLE_CHECK(fields.read("parallel_tool_calls", asked.parallel_tool_calls));
    NIBBLE_CHECK(check_tool_format(fields, model, asked));
    NIBBLE_CHECK(read_word(fields, "reasoning", "effort", "reasoning_effort", asked,
                           [](BodyFields& more) { return more.only("summary", "auto"); }));
    NIBBLE_CHECK(read_word(fields, "text", "verbosity", "verbosity", asked, [](BodyFields& more) -> Status {
        more.ignore({"format"});  // read_response_format()
        return Ok{};
    }));
    return make_chat_turn(fields, "input", model, std::move(asked));
}

}  // namespace nibble
