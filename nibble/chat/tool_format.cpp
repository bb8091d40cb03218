#include "chat/tool_format.h"

#include <algorithm>

namespace nibble {
namespace {

constexpr std::string_view call_begin = "<｜tool▁call▁begin｜>", call_end = "<｜tool▁call▁end｜>",
                           call_separator = "<｜tool▁sep｜>";

std::string_view trimmed(std::string_view text) {
    constexpr std::string_view white = " \t\r\n";
    const size_t first = text.find_first_not_of(white);
    if (first == text.npos) return {};
    return text.substr(first, text.find_last_not_of(white) + 1 - first);
}

// The end of the JSON object or list that begins at `from`; npos: it does not end.
size_t json_end(std::string_view text, size_t from) {
    int depth = 0;
    bool quoted = false;
    for (size_t i = from; i < text.size(); ++i) {
        const char c = text[i];
        if (quoted) {
            if (c == '\\')
                ++i;
            else if (c == '"')
                quoted = false;
            continue;
        }
        if (c == '"') quoted = true;
        if (c == '{' || c == '[') ++depth;
        if ((c == '}' || c == ']') && --depth == 0) return i + 1;
    }
    return text.npos;
}

// The text of a member's value in the text of an object, from its first character; nothing: there is none.
std::optional<std::string_view> member_text(std::string_view object, std::initializer_list<std::string_view> names) {
    int depth = 0;
    for (size_t i = 0; i < object.size(); ++i) {
        const char c = object[i];
        if (c == '{' || c == '[') ++depth;
        if (c == '}' || c == ']') --depth;
        if (c != '"') continue;
        size_t end = i + 1;
        while (end < object.size() && object[end] != '"') end += object[end] == '\\' ? 2 : 1;
        if (end >= object.size()) return std::nullopt;
        const std::string_view key = object.substr(i + 1, end - i - 1);
        i = end;
        if (depth != 1 || std::find(names.begin(), names.end(), key) == names.end()) continue;
        const size_t colon = object.find_first_not_of(" \t\r\n", end + 1);
        if (colon == object.npos || object[colon] != ':') continue;
        const size_t value = object.find_first_not_of(" \t\r\n", colon + 1);
        return value == object.npos ? std::string_view() : object.substr(value);
    }
    return std::nullopt;
}

// {"name": ..., "arguments" or "parameters": ..., "id"}: the text of one call.
std::optional<ToolCall> json_call(std::string_view text) {
    const auto parsed = parse_json(text);
    if (!parsed.ok() || !parsed->is_object()) return std::nullopt;
    const auto name = parsed->find("name");
    if (name == parsed->end() || !name->is_string()) return std::nullopt;
    ToolCall call;
    call.name = name->get<std::string>();
    call.arguments = "{}";
    if (const auto id = parsed->find("id"); id != parsed->end() && id->is_string()) call.id = id->get<std::string>();
    for (const char* key : {"arguments", "parameters"}) {
        const auto value = parsed->find(key);
        if (value == parsed->end() || value->is_null()) continue;
        if (value->is_string())
            call.arguments = value->get<std::string>();
        else
            call.arguments = value->dump();
        // As the model wrote it, where it is an object.
        if (value->is_object())
            if (const auto written = member_text(text, {key}))
                if (const size_t end = json_end(*written, 0); end != written->npos)
                    call.arguments = std::string(written->substr(0, end));
        break;
    }
    return call;
}

// What an answer that broke off says of a call.
std::optional<ToolCall> broken_call(std::string_view text) {
    const auto name = member_text(text, {"name"});
    if (!name || !name->starts_with('"')) return std::nullopt;
    const size_t end = name->find('"', 1);
    if (end == name->npos) return std::nullopt;
    const auto arguments = member_text(text, {"arguments", "parameters"});
    return ToolCall{"", std::string(name->substr(1, end - 1)), std::string(arguments.value_or(""))};
}

// Objects beside each other or in a list, separated by white space, commas and semicolons.
std::optional<std::vector<ToolCall>> json_calls(std::string_view body, bool whole) {
    std::vector<ToolCall> calls;
    body = trimmed(body);
    if (body.starts_with('[')) {
        body.remove_prefix(1);
        if (body.ends_with(']') && whole) body.remove_suffix(1);
    }
    for (size_t at = 0; (at = body.find_first_not_of(" \t\r\n,;]", at)) != body.npos;) {
        if (body[at] != '{') return std::nullopt;
        const size_t end = json_end(body, at);
        auto call = end == body.npos ? whole ? std::nullopt : broken_call(body.substr(at))
                                     : json_call(body.substr(at, end - at));
        if (!call) return std::nullopt;
        calls.push_back(*std::move(call));
        if (end == body.npos) break;
        at = end;
    }
    if (calls.empty()) return std::nullopt;
    return calls;
}

// The type that the tool's schema gives a parameter; "" where it says nothing.
std::string parameter_type(const Json& tools, std::string_view tool, const std::string& parameter) {
    if (!tools.is_array()) return "";
    for (const Json& one : tools) {
        const Json function = one.value("function", Json::object());
        if (function.value("name", "") != tool) continue;
        const Json::json_pointer type("/parameters/properties");
        if (!function.contains(type) || !function[type].is_object() || !function[type].contains(parameter)) return "";
        const Json& schema = function[type][parameter];
        const auto found = schema.is_object() ? schema.find("type") : schema.end();
        return schema.is_object() && found != schema.end() && found->is_string() ? found->get<std::string>() : "any";
    }
    return "";
}

// <function=name><parameter=key>value</parameter></function>
std::optional<std::vector<ToolCall>> tagged_calls(std::string_view body, bool whole, const Json& tools) {
    std::vector<ToolCall> calls;
    constexpr std::string_view function = "<function=", parameter = "<parameter=", close = "</parameter>";
    for (size_t at = 0; (at = body.find(function, at)) != body.npos;) {
        const size_t name_end = body.find('>', at);
        if (name_end == body.npos) break;
        ToolCall call{"", std::string(trimmed(body.substr(at + function.size(), name_end - at - function.size()))), ""};
        const size_t function_end = std::min(body.find("</function>", name_end), body.size());
        Json arguments = Json::object();
        for (size_t p = name_end; (p = body.find(parameter, p)) < function_end;) {
            const size_t key_end = body.find('>', p);
            if (key_end >= function_end) break;
            const std::string key(trimmed(body.substr(p + parameter.size(), key_end - p - parameter.size())));
            const size_t value_end = std::min(body.find(close, key_end), function_end);
            if (value_end == function_end && !whole) break;  // a value that broke off
            std::string_view value = body.substr(key_end + 1, value_end - key_end - 1);
            if (value.starts_with('\n')) value.remove_prefix(1);
            if (value.ends_with('\n')) value.remove_suffix(1);
            const std::string type = parameter_type(tools, call.name, key);
            arguments[key] = value;
            if (!type.empty() && type != "string")
                if (auto parsed = parse_json(value); parsed.ok()) arguments[key] = *std::move(parsed);
            p = value_end;
        }
        call.arguments = arguments.dump(-1, ' ', false, Json::error_handler_t::replace);
        calls.push_back(std::move(call));
        at = function_end;
    }
    if (calls.empty()) return std::nullopt;
    return calls;
}

// A name and the arguments behind it, as text that ends with them.
std::optional<ToolCall> named_call(std::string_view name, std::string_view arguments, bool whole) {
    name = trimmed(name);
    arguments = trimmed(arguments);
    if (name.empty()) return std::nullopt;
    if (whole && !parse_json(arguments).ok()) return std::nullopt;
    return ToolCall{"", std::string(name), std::string(arguments)};
}

// [{"name", "arguments"}], or name[ARGS]{...} or name{...} and again [TOOL_CALLS].
std::optional<std::vector<ToolCall>> mistral_calls(std::string_view body, bool whole) {
    if (trimmed(body).starts_with('[') || trimmed(body).starts_with('{')) return json_calls(body, whole);
    std::vector<ToolCall> calls;
    constexpr std::string_view again = "[TOOL_CALLS]", arguments = "[ARGS]", id = "[CALL_ID]";
    while (!trimmed(body).empty()) {
        const size_t brace = body.find('{');
        std::string_view name = body.substr(0, brace);
        if (const size_t tag = name.find(arguments); tag != name.npos) name = name.substr(0, tag);
        std::string call_id;
        if (const size_t tag = name.find(id); tag != name.npos) {
            call_id = trimmed(name.substr(tag + id.size()));
            name = name.substr(0, tag);
        }
        const size_t end = brace == body.npos ? body.npos : json_end(body, brace);
        const bool ends = end != body.npos;
        if (!ends && whole) return std::nullopt;
        auto call =
            named_call(name, brace == body.npos ? "" : body.substr(brace, ends ? end - brace : body.npos), ends);
        if (!call) return std::nullopt;
        call->id = call_id;
        calls.push_back(*std::move(call));
        if (!ends) break;
        body = trimmed(body.substr(end));
        if (body.starts_with(again)) body.remove_prefix(again.size());
    }
    if (calls.empty()) return std::nullopt;
    return calls;
}

std::optional<std::vector<ToolCall>> deepseek_calls(std::string_view body, bool whole) {
    std::vector<ToolCall> calls;
    for (size_t at = 0; (at = body.find(call_begin, at)) != body.npos;) {
        at += call_begin.size();
        const size_t end = body.find(call_end, at);
        const std::string_view inner = body.substr(at, end == body.npos ? body.npos : end - at);
        const size_t separator = inner.find(call_separator);
        if (separator == inner.npos) return std::nullopt;
        std::string_view name = inner.substr(0, separator), rest = inner.substr(separator + call_separator.size());
        if (const size_t fence = rest.find("```json"); fence != rest.npos) {  // function, separator, name, block
            name = rest.substr(0, fence);
            rest = rest.substr(fence + 7);
            rest = rest.substr(0, rest.rfind("```"));
        }
        auto call = named_call(name, rest, whole && end != body.npos);
        if (!call) return std::nullopt;
        calls.push_back(*std::move(call));
        at = std::min(end, body.size());
    }
    if (calls.empty()) return std::nullopt;
    return calls;
}

}  // namespace

const std::vector<ToolFormat>& tool_formats() {
    static const std::vector<ToolFormat> formats{
        {"hermes", "<tool_call>", "</tool_call>"},
        {"llama3", "", ""},
        {"mistral", "[TOOL_CALLS]", ""},
        {"nemotron", "<TOOLCALL>", "</TOOLCALL>"},
        {"deepseek_v3", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"},
    };
    return formats;
}

const ToolFormat* find_tool_format(std::string_view name) {
    for (const ToolFormat& format : tool_formats())
        if (format.name == name) return &format;
    return nullptr;
}

std::optional<std::vector<ToolCall>> read_tool_calls(const ToolFormat& format, std::string_view body, bool whole,
                                                     const Json& tools) {
    if (format.name == "mistral") return mistral_calls(body, whole);
    if (format.name == "deepseek_v3") return deepseek_calls(body, whole);
    if (format.name == "hermes" && trimmed(body).starts_with("<function=")) return tagged_calls(body, whole, tools);
    if (format.name == "llama3") {
        body = trimmed(body);
        if (constexpr std::string_view tag = "<|python_tag|>"; body.starts_with(tag)) body.remove_prefix(tag.size());
    }
    return json_calls(body, whole);
}

GrammarStructure tool_structure(const ToolFormat& format, const Json& tools, bool parallel, std::string_view source,
                                const Tokenizer& tokenizer) {
    GrammarStructure out;
    out.most = parallel ? 16 : 1;
    const auto text = [&](std::string_view written) {
        const auto id = tokenizer.id_of(written);
        return GrammarPiece{.text = std::string(written), .control = id && tokenizer.is_special(*id)};
    };
    const bool tagged = source.find("<function=") != source.npos, named = source.find("[ARGS]") != source.npos;
    const bool fenced = source.find("```json") != source.npos;
    for (const Json& tool : tools) {
        const Json& function = tool["function"];
        const std::string name = function["name"].get<std::string>();
        Json parameters = function.value("parameters", Json());
        if (!parameters.is_object()) parameters = {{"type", "object"}};
        const GrammarPiece schema{.schema = std::make_shared<const Json>(parameters)};
        const auto object = [&](const char* key) {
            return std::vector<GrammarPiece>{text("{\"name\": " + Json(name).dump() + ", \"" + key + "\": "), schema,
                                             text("}")};
        };
        std::vector<GrammarPiece> call;
        if (format.name == "hermes" && tagged) {
            std::string keys;
            const Json properties = parameters.value("properties", Json::object());
            for (const auto& [key, value] : properties.items()) {
                keys += keys.empty() ? "" : "|";
                for (const char c : key)
                    keys += std::string_view("\\^$.|?*+()[]{}/").find(c) == std::string_view::npos
                                ? std::string(1, c)
                                : std::string("\\") + c;
            }
            call = {text("<tool_call>"), text("\n<function=" + name + ">\n")};
            if (!keys.empty()) call.push_back({.pattern = "(<parameter=(" + keys + ")>\\n[^<]*\\n</parameter>\\n)*"});
            call.push_back(text("</function>\n"));
            call.push_back(text("</tool_call>"));
        } else if (format.name == "hermes") {
            call = object("arguments");
            call.insert(call.begin(), {text("<tool_call>"), text("\n")});
            call.push_back(text("\n"));
            call.push_back(text("</tool_call>"));
        } else if (format.name == "mistral" && named) {
            call = {text("[TOOL_CALLS]"), text(name), text("[ARGS]"), schema};
        } else if (format.name == "deepseek_v3" && fenced) {
            call = {text(call_begin), text("function"), text(call_separator), text(name + "\n```json\n"),
                    schema,           text("\n```"),    text(call_end)};
        } else if (format.name == "deepseek_v3") {
            call = {text(call_begin), text(name), text(call_separator), schema, text(call_end)};
        } else {
            call = object(format.name == "llama3" ? "parameters" : "arguments");
        }
        out.one_of.push_back(std::move(call));
    }
    if (format.name == "hermes") out.between = {text("\n")};
    if (format.name == "llama3") out.most = 1;
    if ((format.name == "mistral" && !named) || format.name == "nemotron") {
        out.before = {text(format.begin), text("[")};
        out.between = {text(", ")};
        out.after = {text("]")};
        if (format.name == "nemotron") out.after.push_back(text(format.end));
    }
    if (format.name == "deepseek_v3") {
        out.before = {text(format.begin)};
        if (fenced) out.between = {text("\n")};
        out.after = {text(format.end)};
    }
    return out;
}

}  // namespace nibble
