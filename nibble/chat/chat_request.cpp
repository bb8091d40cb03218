// Checks and normalizes the messages and tools of a request before a template reads them.
#include "chat/chat_request.h"

#include "base/utf8.h"
#include "chat/chat_format.h"

#include <algorithm>
#include <set>

namespace nibble {
namespace {

constexpr size_t most_name = 128;  // Anthropic's limit; a namespace with a name in it fits, too

bool good_name(const std::string& name) {
    return !name.empty() && name.size() <= most_name && std::all_of(name.begin(), name.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
               c == '.';
    });
}

const Json* at_key(const Json& object, const char* key) {
    const auto it = object.find(key);
    return it == object.end() || it->is_null() ? nullptr : &*it;
}

Result<std::string> content_text(const Json& content, const std::string& where) {
    if (content.is_string()) return content.get<std::string>();
    if (!content.is_array()) return fail("{}: is neither a text nor a list of parts", where);
    std::string out;
    for (size_t i = 0; i < content.size(); ++i) {
        const Json& part = content[i];
        const Json* type = part.is_object() ? at_key(part, "type") : nullptr;
        if (!type || !type->is_string()) return fail("{}[{}]: has no type", where, i);
        const auto& name = type->get_ref<const std::string&>();
        if (name != "text" && name != "input_text" && name != "output_text" && name != "refusal")
            return fail("{}[{}]: the type '{}' is not supported; only text is", where, i, name);
        const char* const member = name == "refusal" ? "refusal" : "text";
        const Json* text = at_key(part, member);
        if (!text || !text->is_string()) return fail("{}[{}].{}: is not a text", where, i, member);
        if (i > 0) out += '\n';
        out += text->get_ref<const std::string&>();
    }
    return out;
}

// Converts a call of a custom tool, {"type": "custom", "custom": {"name", "input"}}, to the call of a function with a
// text parameter.
Status read_custom_call(Json& call, const std::string& where) {
    if (!call.is_object() || call.value("type", Json()) != "custom") return Ok{};
    const Json custom = call.value("custom", Json());
    const Json* name = custom.is_object() ? at_key(custom, "name") : nullptr;
    const Json* input = custom.is_object() ? at_key(custom, "input") : nullptr;
    if (!name || !name->is_string()) return fail("{}.custom.name: is not a text", where);
    if (!input || !input->is_string()) return fail("{}.custom.input: is not a text", where);
    call["type"] = "function";
    call["function"] = {{"name", *name}, {"arguments", {{input_parameter, *input}}}};
    call.erase("custom");
    return Ok{};
}

// Arguments are JSON text; templates expect the object. Text that is not an object is kept: models write such calls
// (cut off by max_tokens, or invalid JSON), and a conversation with one must be able to continue.
Status read_calls(Json& calls, const std::string& where) {
    if (!calls.is_array()) return fail("{}: is not a list of calls", where);
    for (size_t i = 0; i < calls.size(); ++i) {
        const std::string here = fmt::format("{}[{}]", where, i);
        NIBBLE_CHECK(read_custom_call(calls[i], here));
        if (!calls[i].is_object() || !calls[i].contains("function") || !calls[i]["function"].is_object())
            return fail("{}.function: is missing", here);
        Json& function = calls[i]["function"];
        const Json* name = at_key(function, "name");
        if (!name || !name->is_string()) return fail("{}.function.name: is not a text", here);
        const auto arguments = function.find("arguments");
        if (arguments == function.end() || arguments->is_null()) {
            function["arguments"] = Json::object();
        } else if (arguments->is_string()) {
            const auto& text = arguments->get_ref<const std::string&>();
            auto parsed = text.empty() ? Result<Json>(Json::object()) : parse_json(text);
            if (parsed.ok() && parsed->is_object()) *arguments = *std::move(parsed);
        } else if (!arguments->is_object()) {
            return fail("{}.function.arguments: is neither a text nor an object", here);
        }
    }
    return Ok{};
}

// Converts the deprecated function_call to a list of one call, and a message of `function` to the result of the call
// before.
void modernize(Json& message, std::string& call_id, size_t number) {
    const Json* old = at_key(message, "function_call");
    if (message["role"] == "assistant" && old && !at_key(message, "tool_calls")) {
        call_id = fmt::format("call_{}", number);
        message["tool_calls"] = Json::array({{{"id", call_id}, {"type", "function"}, {"function", *old}}});
        message.erase("function_call");
    }
    if (message["role"] == "function") {
        message["role"] = "tool";
        if (!at_key(message, "tool_call_id")) message["tool_call_id"] = call_id;
    }
}

}  // namespace

Result<Json> checked_messages(const Json& messages, bool keep_developer) {
    if (!messages.is_array() || messages.empty()) return fail("messages: is not a list with at least one message");
    Json out = Json::array();
    std::string call_id;  // id of the last deprecated call
    for (size_t i = 0; i < messages.size(); ++i) {
        const std::string where = fmt::format("messages[{}]", i);
        if (!messages[i].is_object()) return fail("{}: is not an object", where);
        Json message = messages[i];
        auto role = message.find("role");
        if (role == message.end() || !role->is_string()) return fail("{}.role: is not a text", where);
        static const std::set<std::string> roles{"system", "developer", "user", "assistant", "tool", "function"};
        if (!roles.contains(role->get<std::string>()))
            return fail("{}.role: '{}' is none of system, developer, user, assistant, tool, function", where,
                        role->get<std::string>());
        modernize(message, call_id, i);
        role = message.find("role");
        const bool assistant = *role == "assistant";
        if (*role == "developer" && !keep_developer) *role = "system";
        const Json* called = assistant ? at_key(message, "tool_calls") : nullptr;
        const bool calls = called && *called != Json::array();
        const auto content = message.find("content");
        if (content == message.end() || content->is_null()) {
            if (!assistant) return fail("{}.content: is missing", where);
            message["content"] = "";
        } else {
            NIBBLE_TRY(*content, content_text(*content, where + ".content"));
        }
        if (calls)
            NIBBLE_CHECK(read_calls(message["tool_calls"], where + ".tool_calls"));
        else
            message.erase("tool_calls");
        out.push_back(std::move(message));
    }
    return out;
}

bool wrap_text_arguments(Json& messages) {
    bool any = false;
    for (Json& message : messages) {
        const auto calls = message.find("tool_calls");
        if (calls == message.end()) continue;
        for (Json& call : *calls)
            if (Json& arguments = call["function"]["arguments"]; arguments.is_string()) {
                arguments = {{"arguments", std::move(arguments)}};
                any = true;
            }
    }
    return any;
}

Status check_tools(const Json& tools) {
    if (tools.is_null()) return Ok{};
    if (!tools.is_array()) return fail("tools: is not a list");
    std::set<std::string> names;
    for (size_t i = 0; i < tools.size(); ++i) {
        const std::string where = fmt::format("tools[{}]", i);
        const Json& tool = tools[i];
        if (!tool.is_object()) return fail("{}: is not an object", where);
        if (const Json* type = at_key(tool, "type"); !type || *type != "function")
            return fail("{}.type: is neither 'function' nor 'custom'", where);
        const Json* function = at_key(tool, "function");
        if (!function || !function->is_object()) return fail("{}.function: is not an object", where);
        const Json* name = at_key(*function, "name");
        if (!name || !name->is_string() || !good_name(name->get<std::string>()))
            return fail("{}.function.name: is not 1 to {} letters, digits, '_', '-' or '.'", where, most_name);
        if (!names.insert(name->get<std::string>()).second)
            return fail("{}.function.name: '{}' is there already", where, name->get<std::string>());
        if (const Json* description = at_key(*function, "description"); description && !description->is_string())
            return fail("{}.function.description: is not a text", where);
        if (const Json* parameters = at_key(*function, "parameters"); parameters && !parameters->is_object())
            return fail("{}.function.parameters: is not an object", where);
    }
    return Ok{};
}

namespace {

// Returns the name in {"type": "function", "function": {"name"}} or {"type": "custom", "custom": {"name"}}; else an
// empty text.
std::string tool_name(const Json& tool) {
    if (!tool.is_object()) return {};
    const Json type = tool.value("type", Json("function"));
    if (type != "function" && type != "custom") return {};
    const auto named = tool.find(type.get_ref<const std::string&>());
    if (named == tool.end() || !named->is_object()) return {};
    const Json name = named->value("name", Json());
    return name.is_string() ? name.get<std::string>() : std::string();
}

// Parses {"mode", "tools"} and removes all other tools of the request, so that the prompt contains only these.
Status allow_tools(const Json& allowed, ChatRequest& request) {
    if (!allowed.is_object() || !allowed.contains("tools") || !allowed["tools"].is_array())
        return fail("tool_choice.allowed_tools: is not {{\"mode\", \"tools\"}}");
    if (!request.tools.is_array()) return fail("tool_choice.allowed_tools: there are no tools");
    const Json mode = allowed.value("mode", Json("auto"));
    if (mode != "auto" && mode != "required")
        return fail("tool_choice.allowed_tools.mode: is none of 'auto', 'required'");
    Json kept = Json::array();
    for (const Json& tool : allowed["tools"]) {
        const std::string name = tool_name(tool);
        const auto known =
            std::ranges::find_if(request.tools, [&](const Json& t) { return !name.empty() && tool_name(t) == name; });
        if (known == request.tools.end()) return fail("tool_choice.allowed_tools.tools: there is no tool '{}'", name);
        if (std::ranges::find(kept, *known) == kept.end()) kept.push_back(*known);
    }
    if (kept.empty()) return fail("tool_choice.allowed_tools.tools: is empty");
    request.tools = std::move(kept);
    request.tool_choice = mode == "required" ? ToolChoice::required : ToolChoice::automatic;
    return Ok{};
}

}  // namespace

Status read_tool_choice(const Json& value, ChatRequest& request) {
    request.tool_name.clear();
    const bool tools = request.tools.is_array() && !request.tools.empty();
    if (value.is_null() || value == "auto") {
        request.tool_choice = ToolChoice::automatic;
    } else if (value == "none") {
        request.tool_choice = ToolChoice::none;
    } else if (value == "required") {
        if (!tools) return fail("tool_choice: is 'required', but there are no tools");
        request.tool_choice = ToolChoice::required;
    } else if (value.is_object() && value.value("type", Json()) == "allowed_tools") {
        return allow_tools(value.value("allowed_tools", Json()), request);
    } else if (value.is_object() && value.contains("type") && !tool_name(value).empty()) {
        request.tool_choice = ToolChoice::named;
        request.tool_name = tool_name(value);
        const bool known = tools && std::ranges::any_of(request.tools, [&](const Json& tool) {
                               return tool_name(tool) == request.tool_name;
                           });
        if (!known)
            return fail("tool_choice.{}.name: there is no tool '{}'", value["type"].get<std::string>(),
                        request.tool_name);
    } else {
        return fail(
            "tool_choice: is none of 'none', 'auto', 'required', {{\"type\": \"function\", \"function\": "
            "{{\"name\"}}}}, {{\"type\": \"allowed_tools\", \"allowed_tools\": {{\"mode\", \"tools\"}}}}");
    }
    return Ok{};
}

}  // namespace nibble
