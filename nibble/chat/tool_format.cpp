#include "chat/tool_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace nibble {
namespace {

bool holds(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

using Pieces = std::vector<std::string_view>;
const Pieces object_call{R"({"name": %j, "arguments": )", "%a", "}"};

std::vector<ToolFormat> make_tool_formats() {
    const CallForm deepseek{.head = CallHead::block,
                            .opening = deepseek_call_begin,
                            .closing = deepseek_call_end,
                            .separator = deepseek_separator,
                            .pieces = {deepseek_call_begin, "%n", deepseek_separator, "%a", deepseek_call_end},
                            .before = {"<｜tool▁calls▁begin｜>"},
                            .after = {"<｜tool▁calls▁end｜>"}};
    CallForm fenced = deepseek;
    fenced.sign = "```json";
    fenced.pieces = {deepseek_call_begin, "function", deepseek_separator, "%n\n```json\n", "%a", "\n```",
                     deepseek_call_end};
    fenced.between = {"\n"};

    return {
        {.name = "deepseek_v3",
         .begin = "<｜tool▁calls▁begin｜>",
         .end = "<｜tool▁calls▁end｜>",
         .signs = {{"tool▁calls▁begin"}},
         .forms = {fenced, deepseek}},
        {.name = "mistral",
         .begin = "[TOOL_CALLS]",
         .end = "",
         .signs = {{"[TOOL_CALLS]"}},
         .forms = {{.head = CallHead::named,
                    .sign = "[ARGS]",
                    .opening = "[TOOL_CALLS]",
                    .pieces = {"[TOOL_CALLS]", "%n", "[ARGS]", "%a"}},
                   {.pieces = object_call, .before = {"[TOOL_CALLS]", "["}, .between = {", "}, .after = {"]"}}},
         .short_ids = true},
        {.name = "nemotron",
         .begin = "<TOOLCALL>",
         .end = "</TOOLCALL>",
         .signs = {{"<TOOLCALL>"}},
         .forms = {{.closing = "</TOOLCALL>",
                    .pieces = object_call,
                    .before = {"<TOOLCALL>", "["},
                    .between = {", "},
                    .after = {"]", "</TOOLCALL>"}}}},
        {.name = "hermes",
         .begin = "<tool_call>",
         .end = "</tool_call>",
         .signs = {{"<tool_call>"}},
         .forms = {{.head = CallHead::tagged,
                    .sign = function_begin,
                    .opening = function_begin,
                    .pieces = {"<tool_call>", "\n<function=%n>\n", "%a", "</function>\n", "</tool_call>"},
                    .between = {"\n"}},
                   {.closing = "</tool_call>",
                    .pieces = {"<tool_call>", "\n", R"({"name": %j, "arguments": )", "%a", "}", "\n", "</tool_call>"},
                    .between = {"\n"}}}},
        {.name = "llama3",
         .begin = "",
         .end = "",
         .lead = "<|python_tag|>",
         .signs = {{"<|python_tag|>"}, {"ipython", "\"parameters\""}},
         .forms = {{.pieces = {R"({"name": %j, "parameters": )", "%a", "}"}}},
         .one_call = true}};
}

// The piece with the name in the place of %n or %j.
std::string with_name(std::string_view piece, const std::string& name) {
    const size_t at = piece.find('%');
    if (at == piece.npos) return std::string(piece);
    std::string out(piece.substr(0, at));
    out += piece[at + 1] == 'j' ? Json(name).dump() : name;
    return out.append(piece.substr(at + 2));
}

}  // namespace

const CallForm* ToolFormat::form(CallHead head) const {
    const auto found = std::ranges::find(forms, head, &CallForm::head);
    return found == forms.end() ? nullptr : &*found;
}

const CallForm& ToolFormat::written(std::string_view chat_template) const {
    const auto asked = [&](const CallForm& form) { return form.sign.empty() || holds(chat_template, form.sign); };
    return *std::ranges::find_if(forms, asked);  // the last form has no sign
}

const std::vector<ToolFormat>& tool_formats() {
    static const std::vector<ToolFormat> formats = make_tool_formats();
    return formats;
}

const ToolFormat* find_tool_format(std::string_view name) {
    for (const ToolFormat& format : tool_formats())
        if (format.name == name) return &format;
    return nullptr;
}

const ToolFormat* tool_format_of(std::string_view chat_template) {
    for (const ToolFormat& format : tool_formats())
        for (const auto& texts : format.signs)
            if (std::ranges::all_of(texts, [&](std::string_view text) { return holds(chat_template, text); }))
                return &format;
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
    const CallForm& form = format.written(source);
    const bool tags = form.head == CallHead::tagged;
    const auto text = [&](std::string written) {
        const auto id = tokenizer.id_of(written);
        return GrammarPiece{.text = std::move(written), .control = id && tokenizer.is_special(*id)};
    };
    const auto texts = [&](const std::vector<std::string_view>& list) {
        std::vector<GrammarPiece> out;
        for (const std::string_view one : list) out.push_back(text(std::string(one)));
        return out;
    };
    GrammarStructure out{.before = texts(form.before), .between = texts(form.between), .after = texts(form.after)};
    out.most = format.one_call ? 1 : most;
    for (const Json& tool : tools) {
        const Json& function = tool["function"];
        const std::string name = function["name"].get<std::string>();
        const Json parameters = object_schema(function.value("parameters", Json()));
        GrammarPiece arguments{.schema = std::make_shared<const Json>(parameters)};
        if (tags) arguments.tagged = std::make_shared<const TaggedObject>(tagged_parameters(parameters));
        if (const auto input = grammars.find(name); input != grammars.end())
            arguments = input_piece(input->second, tags);
        std::vector<GrammarPiece> call;
        for (const std::string_view piece : form.pieces)
            call.push_back(piece == "%a" ? arguments : text(with_name(piece, name)));
        out.one_of.push_back(std::move(call));
    }
    return out;
}

}  // namespace nibble
