#include "server/client_tools.h"

#include "chat/tool_format.h"

#include <algorithm>
#include <array>

namespace nibble {
namespace {

constexpr std::string_view space_separator = "__";  // between a namespace and a name, as in vLLM

// Returns the text of a member; empty: there is none.
std::string words(const Json& object, const char* name) {
    if (!object.is_object()) return {};
    const auto found = object.find(name);
    return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

}  // namespace

// OpenAI appends dates to some of these types.
bool is_hosted_tool(std::string_view type) {
    static constexpr std::array types{
        "web_search",  "file_search", "code_interpreter", "computer",    "image_generation",         "mcp",
        "local_shell", "shell",       "apply_patch",      "tool_search", "programmatic_tool_calling"};
    static constexpr std::array beginnings{"web_search_", "computer_use"};
    return std::ranges::find(types, type) != types.end() ||
           std::ranges::any_of(beginnings, [&](std::string_view begin) { return type.starts_with(begin); });
}

void ClientTool::name_in(Json& item) const {
    item["name"] = name;
    if (!space.empty()) item["namespace"] = space;
}

std::string ClientTools::prompt_name(const std::string& space, const std::string& name) {
    return space.empty() ? name : fmt::format("{}{}{}", space, space_separator, name);
}

Status ClientTools::add_custom(const Json& tool, const ClientTool& named) {
    const std::string name = prompt_name(named.space, named.name);
    std::string description = words(tool, "description");
    Json input{{"type", "string"}, {"description", "The text that the tool takes."}};
    const Json format = tool.value("format", Json());
    const std::string type = format.is_null() ? "text" : words(format, "type"), syntax = words(format, "syntax");
    if (type != "text" && type != "grammar") return fail("format.type is neither text nor grammar");
    if (type == "grammar") {
        const std::string definition = words(format, "definition");
        if (syntax != "lark" && syntax != "regex") return fail("format.syntax is neither lark nor regex");
        if (definition.empty()) return fail("format.definition is missing");
        if (!description.empty()) description += "\n\n";
        description += fmt::format("The input is a text of this {}:\n{}",
                                   syntax == "lark" ? "grammar in Lark" : "regular expression", definition);
        if (syntax == "lark")
            grammars_[name] = definition;
        else
            input["pattern"] = fmt::format("^(?:{})$", definition);
    }
    Json function{{"name", name}};
    if (input.contains("pattern")) function["strict"] = true;  // the pattern applies wherever the tool is called
    if (!description.empty()) function["description"] = description;
    function["parameters"] = {{"type", "object"},
                              {"properties", {{input_parameter, std::move(input)}}},
                              {"required", Json::array({input_parameter})},
                              {"additionalProperties", false}};
    functions_.push_back({{"type", "function"}, {"function", std::move(function)}});
    return Ok{};
}

Status ClientTools::add(const Json& tool, const std::string& space) {
    const Json type = tool.is_object() ? tool.value("type", Json()) : Json();
    if (type != "function" && type != "custom") {
        if (!type.is_string() || !is_hosted_tool(type.get_ref<const std::string&>()))
            return fail("type {} is not a type of tools",
                        type.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 200));
        left_out_.insert(type);
        return Ok{};
    }
    const ClientTool named{words(tool, "name"), space, type == "custom"};
    if (named.name.empty()) return fail("name is missing");
    by_name_.emplace(prompt_name(space, named.name), named);
    if (named.custom) return add_custom(tool, named);
    Json function{{"name", prompt_name(space, named.name)}};
    for (const char* name : {"description", "parameters", "strict"})
        if (const Json value = tool.value(name, Json()); !value.is_null()) function[name] = value;
    functions_.push_back({{"type", "function"}, {"function", std::move(function)}});
    return Ok{};
}

Result<ClientTools> ClientTools::read(const Json& list) {
    if (!list.is_array()) return fail("is not a list");
    ClientTools tools;
    for (size_t i = 0; i < list.size(); ++i) {
        const Json& tool = list[i];
        if (!tool.is_object() || tool.value("type", Json()) != "namespace") {
            if (const Status added = tools.add(tool, ""); !added.ok())
                return fail("[{}].{}", i, added.error().message());
            continue;
        }
        const Json inner = tool.value("tools", Json());
        const std::string space = words(tool, "name");
        if (space.empty()) return fail("[{}].name is missing", i);
        if (!inner.is_array()) return fail("[{}].tools is not a list", i);
        for (size_t k = 0; k < inner.size(); ++k)
            if (const Status added = tools.add(inner[k], space); !added.ok())
                return fail("[{}].tools[{}].{}", i, k, added.error().message());
    }
    return tools;
}

Result<ClientTools> ClientTools::read_chat(const Json& list) {
    if (!list.is_array()) return fail("is not a list");
    ClientTools tools;
    for (size_t i = 0; i < list.size(); ++i) {
        if (words(list[i], "type") != "custom") {
            tools.functions_.push_back(list[i]);
            continue;
        }
        Json custom = list[i].value("custom", Json());
        const ClientTool named{.name = words(custom, "name"), .custom = true};
        if (named.name.empty()) return fail("[{}].custom.name is missing", i);
        // In this API the grammar is a member of the format; in /v1/responses its members are the format's.
        if (const Json format = custom.value("format", Json()); words(format, "type") == "grammar") {
            const Json grammar = format.value("grammar", Json());
            if (!grammar.is_object()) return fail("[{}].custom.format.grammar is missing", i);
            custom["format"].update(grammar);
        }
        tools.by_name_.emplace(named.name, named);
        if (const Status added = tools.add_custom(custom, named); !added.ok())
            return fail("[{}].custom.{}", i, added.error().message());
    }
    return tools;
}

ClientTool ClientTools::called(const std::string& name) const {
    if (const auto found = by_name_.find(name); found != by_name_.end()) return found->second;
    const ClientTool* only = nullptr;  // the only tool with this name in any namespace
    for (const auto& [key, tool] : by_name_)
        if (tool.name == name) {
            if (only) return {.name = name};
            only = &tool;
        }
    return only ? *only : ClientTool{.name = name};
}

std::string ClientTools::prompt_name(const Json& choice) const {
    const std::string name = words(choice, "name"), space = words(choice, "namespace");
    if (name.empty()) return {};
    if (by_name_.contains(prompt_name(space, name))) return prompt_name(space, name);
    const ClientTool tool = called(name);
    const std::string known = prompt_name(tool.space, tool.name);
    return by_name_.contains(known) ? known : std::string();
}

std::vector<std::string> ClientTools::prompt_names(const Json& allowed) const {
    if (!allowed.is_object() || allowed.value("type", Json()) != "namespace") return {prompt_name(allowed)};
    std::vector<std::string> names;
    for (const auto& [key, tool] : by_name_)
        if (!tool.space.empty() && allowed.value("name", Json()) == tool.space) names.push_back(key);
    return names.empty() ? std::vector<std::string>{""} : names;
}

}  // namespace nibble
