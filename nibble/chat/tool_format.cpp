#include "chat/tool_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace nibble {
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

TaggedObject tagged_parameters(const Json& parameters) {
    TaggedObject out{.name_begin = std::string(parameter_begin),
                     .name_end = ">\n",
                     .value_end = fmt::format("\n{}\n", parameter_close),
                     .closing = {std::string(parameter_close), std::string(function_close)}};
    if (!parameters.is_object()) return out;
    if (const auto properties = parameters.find("properties");
        properties != parameters.end() && properties->is_object())
        for (const auto& [name, schema] : properties->items()) {
            const auto type = schema.is_object() ? schema.find("type") : schema.end();
            out.text[name] = schema.is_object() && type != schema.end() && *type == "string";
        }
    for (const char* keyword : {"patternProperties", "$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"})
        if (parameters.contains(keyword)) out.others_are_texts = false;
    for (const char* keyword : {"additionalProperties", "unevaluatedProperties"})
        if (const auto others = parameters.find(keyword); others != parameters.end() && others->is_object())
            out.others_are_texts &= others->empty() || others->value("type", Json()) == "string";
    return out;
}

namespace {

// Returns whether a schema restricts an object's members. Empty `properties` and `required` do not.
bool says_members(const Json& schema) {
    static constexpr std::array keywords{"properties",
                                         "required",
                                         "patternProperties",
                                         "additionalProperties",
                                         "unevaluatedProperties",
                                         "propertyNames",
                                         "minProperties",
                                         "maxProperties",
                                         "dependentSchemas",
                                         "dependentRequired",
                                         "dependencies",
                                         "$ref",
                                         "$dynamicRef",
                                         "allOf",
                                         "anyOf",
                                         "oneOf",
                                         "not",
                                         "if",
                                         "enum",
                                         "const"};
    return std::ranges::any_of(keywords, [&](const char* keyword) {
        const auto found = schema.find(keyword);
        if (found == schema.end() || found->is_null()) return false;
        const bool lists = std::string_view(keyword) == "properties" || std::string_view(keyword) == "required";
        return !(lists && found->empty());
    });
}

// Returns a schema whose value is an object. Schemas that are absent, {}, or properties without a type would allow any
// value in JSON Schema. A function whose schema does not describe members has no arguments.
Json object_schema(Json parameters) {
    if (!parameters.is_object()) parameters = Json::object();
    const bool says = std::ranges::any_of(std::array{"type", "$ref", "allOf", "anyOf", "oneOf", "enum", "const"},
                                          [&](const char* keyword) { return parameters.contains(keyword); });
    if (!says) parameters["type"] = "object";
    parameters.erase("nullable");
    if (parameters.contains("type") && parameters["type"] == "object" && !says_members(parameters))
        parameters["additionalProperties"] = false;
    return parameters;
}

// Returns the object with one text that matches a grammar, as JSON or between tags.
GrammarPiece input_piece(const std::string& grammar, bool tags) {
    const std::string name = input_parameter;
    if (tags)
        return {.ebnf = grammar,
                .before = fmt::format("{}{}>\n", parameter_begin, name),
                .after = fmt::format("\n{}\n", parameter_close)};
    return {.ebnf = grammar, .spelling = Spelling::json, .before = "{\"" + name + "\": \"", .after = "\"}"};
}

}  // namespace

GrammarStructure tool_structure(const ToolFormat& format, const Json& tools, size_t most, std::string_view source,
                                const Tokenizer& tokenizer, const InputGrammars& grammars) {
    GrammarStructure out;
    out.most = most;
    const auto text = [&](std::string_view written) {
        const auto id = tokenizer.id_of(written);
        return GrammarPiece{.text = std::string(written), .control = id && tokenizer.is_special(*id)};
    };
    const bool tagged = source.find("<function=") != source.npos, named = source.find("[ARGS]") != source.npos;
    const bool fenced = source.find("```json") != source.npos;
    for (const Json& tool : tools) {
        const Json& function = tool["function"];
        const std::string name = function["name"].get<std::string>();
        const Json parameters = object_schema(function.value("parameters", Json()));
        const bool tags = format.name == "hermes" && tagged;
        const auto input = grammars.find(name);
        GrammarPiece schema{.schema = std::make_shared<const Json>(parameters)};
        if (tags) schema.tagged = std::make_shared<const TaggedObject>(tagged_parameters(parameters));
        if (input != grammars.end()) schema = input_piece(input->second, tags);
        const auto object = [&](const char* key) {
            return std::vector<GrammarPiece>{text("{\"name\": " + Json(name).dump() + ", \"" + key + "\": "), schema,
                                             text("}")};
        };
        std::vector<GrammarPiece> call;
        if (tags) {
            call = {text("<tool_call>"), text(fmt::format("\n{}{}>\n", function_begin, name)), schema,
                    text(fmt::format("{}\n", function_close)), text("</tool_call>")};
        } else if (format.name == "hermes") {
            call = object("arguments");
            call.insert(call.begin(), {text("<tool_call>"), text("\n")});
            call.push_back(text("\n"));
            call.push_back(text("</tool_call>"));
        } else if (format.name == "mistral" && named) {
            call = {text("[TOOL_CALLS]"), text(name), text("[ARGS]"), schema};
        } else if (format.name == "deepseek_v3" && fenced) {
            call = {text(deepseek_call_begin),  text("function"), text(deepseek_separator),
                    text(name + "\n```json\n"), schema,           text("\n```"),
                    text(deepseek_call_end)};
        } else if (format.name == "deepseek_v3") {
            call = {text(deepseek_call_begin), text(name), text(deepseek_separator), schema, text(deepseek_call_end)};
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
