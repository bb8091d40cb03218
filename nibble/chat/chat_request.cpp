// What a client may send as a conversation, checked before a template sees it.
#include "chat/chat_request.h"

#include "base/utf8.h"
#include "chat/chat_format.h"

#include <algorithm>
#include <set>

namespace nibble {
namespace {

bool good_name(const std::string& name) {
    return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
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
        if (name != "text" && name != "input_text" && name != "output_text")
            return fail("{}[{}]: the type '{}' is not supported; only text is", where, i, name);
        const Json* text = at_key(part, "text");
        if (!text || !text->is_string()) return fail("{}[{}].text: is not a text", where, i);
        if (i > 0) out += '\n';
        out += text->get_ref<const std::string&>();
    }
    return out;
}

// Arguments come as a text of JSON; templates want what it says.
Status read_calls(Json& calls, const std::string& where) {
    if (!calls.is_array()) return fail("{}: is not a list of calls", where);
    for (size_t i = 0; i < calls.size(); ++i) {
        const std::string here = fmt::format("{}[{}]", where, i);
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
            if (!parsed.ok()) return fail("{}.function.arguments: {}", here, parsed.error().message());
            *arguments = *std::move(parsed);
        }
        if (!function["arguments"].is_object()) return fail("{}.function.arguments: is not an object", here);
    }
    return Ok{};
}

}  // namespace

Result<Json> checked_messages(const Json& messages, bool keep_developer) {
    if (!messages.is_array() || messages.empty()) return fail("messages: is not a list with at least one message");
    Json out = Json::array();
    for (size_t i = 0; i < messages.size(); ++i) {
        const std::string where = fmt::format("messages[{}]", i);
        if (!messages[i].is_object()) return fail("{}: is not an object", where);
        Json message = messages[i];
        const auto role = message.find("role");
        if (role == message.end() || !role->is_string()) return fail("{}.role: is not a text", where);
        static const std::set<std::string> roles{"system", "developer", "user", "assistant", "tool", "function"};
        if (!roles.contains(role->get<std::string>()))
            return fail("{}.role: '{}' is none of system, developer, user, assistant, tool, function", where,
                        role->get<std::string>());
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

Status check_tools(const Json& tools) {
    if (tools.is_null()) return Ok{};
    if (!tools.is_array()) return fail("tools: is not a list");
    std::set<std::string> names;
    for (size_t i = 0; i < tools.size(); ++i) {
        const std::string where = fmt::format("tools[{}]", i);
        const Json& tool = tools[i];
        if (!tool.is_object()) return fail("{}: is not an object", where);
        if (const Json* type = at_key(tool, "type"); !type || *type != "function")
            return fail("{}.type: only 'function' is supported", where);
        const Json* function = at_key(tool, "function");
        if (!function || !function->is_object()) return fail("{}.function: is not an object", where);
        const Json* name = at_key(*function, "name");
        if (!name || !name->is_string() || !good_name(name->get<std::string>()))
            return fail("{}.function.name: is not 1 to 64 letters, digits, '_', '-' or '.'", where);
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

// A function's name where `tool` is {"type": "function", "function": {"name"}}; else empty.
std::string function_name(const Json& tool) {
    if (!tool.is_object() || tool.value("type", Json("function")) != "function") return {};
    const auto function = tool.find("function");
    if (function == tool.end() || !function->is_object()) return {};
    const Json name = function->value("name", Json());
    return name.is_string() ? name.get<std::string>() : std::string();
}

// {"mode", "tools"}: of the request's tools only these stay, so that the model is told of no others.
Status allow_tools(const Json& allowed, ChatRequest& request) {
    if (!allowed.is_object() || !allowed.contains("tools") || !allowed["tools"].is_array())
        return fail("tool_choice.allowed_tools: is not {{\"mode\", \"tools\"}}");
    if (!request.tools.is_array()) return fail("tool_choice.allowed_tools: there are no tools");
    const Json mode = allowed.value("mode", Json("auto"));
    if (mode != "auto" && mode != "required")
        return fail("tool_choice.allowed_tools.mode: is none of 'auto', 'required'");
    Json kept = Json::array();
    for (const Json& tool : allowed["tools"]) {
        const std::string name = function_name(tool);
        const auto known = std::ranges::find_if(
            request.tools, [&](const Json& t) { return !name.empty() && function_name(t) == name; });
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
    } else if (value.is_object() && value.value("type", Json()) == "function" && !function_name(value).empty()) {
        request.tool_choice = ToolChoice::named;
        request.tool_name = function_name(value);
        const bool known = tools && std::ranges::any_of(request.tools, [&](const Json& tool) {
                               return function_name(tool) == request.tool_name;
                           });
        if (!known) return fail("tool_choice.function.name: there is no tool '{}'", request.tool_name);
    } else {
        return fail(
            "tool_choice: is none of 'none', 'auto', 'required', {{\"type\": \"function\", \"function\": "
            "{{\"name\"}}}}, {{\"type\": \"allowed_tools\", \"allowed_tools\": {{\"mode\", \"tools\"}}}}");
    }
    return Ok{};
}

}  // namespace nibble
