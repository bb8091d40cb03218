#include "chat/tool_format.h"

#include "grammar/expression.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace nibble {
namespace {

bool holds(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

using Pieces = std::vector<std::string_view>;
const Pieces object_call{R"({"name": %j, "arguments": )", "%a", "}"};

// {"name": NAME, "arguments": {...}} in a list: BEGIN [{...}, {...}] END
CallForm listed_objects(std::string_view begin, std::string_view end) {
    CallForm out{.closing = end, .pieces = object_call, .before = {begin, "["}, .between = {", "}, .after = {"]"}};
    if (!end.empty()) out.after.push_back(end);
    return out;
}

// <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜><｜tool▁calls▁end｜> (V3.1), or
// function<｜tool▁sep｜>NAME and a block of JSON in the tags (V3, R1)
ToolFormat deepseek_v3() {
    const CallForm plain{.head = CallHead::block,
                         .opening = deepseek_call_begin,
                         .closing = deepseek_call_end,
                         .separator = deepseek_separator,
                         .pieces = {deepseek_call_begin, "%n", deepseek_separator, "%a", deepseek_call_end},
                         .before = {"<｜tool▁calls▁begin｜>"},
                         .after = {"<｜tool▁calls▁end｜>"}};
    CallForm fenced = plain;
    fenced.sign = "```json";
    fenced.pieces = {deepseek_call_begin, "function", deepseek_separator, "%n\n```json\n", "%a", "\n```",
                     deepseek_call_end};
    fenced.between = {"\n"};
    return {.name = "deepseek_v3",
            .begin = "<｜tool▁calls▁begin｜>",
            .end = "<｜tool▁calls▁end｜>",
            .signs = {{"tool▁calls▁begin"}},
            .forms = {fenced, plain}};
}

// <｜DSML｜function_calls>
// <｜DSML｜invoke name="NAME">
// <｜DSML｜parameter name="KEY" string="true">text</｜DSML｜parameter>
// </｜DSML｜invoke>
// </｜DSML｜function_calls>     (V3.2; tool_calls in V4)
ToolFormat deepseek_tags(std::string_view name, std::string_view begin, std::string_view end, std::string_view sign) {
    return {.name = name,
            .begin = begin,
            .end = end,
            .signs = {{"｜DSML｜", sign}},
            .forms = {{.head = CallHead::tagged,
                       .opening = "<｜DSML｜invoke name=\"",
                       .closing = "</｜DSML｜invoke>",
                       .separator = "\">",
                       .tags = {.begin = "<｜DSML｜parameter name=\"",
                                .name_end = "\" string=\"false\">",
                                .value_end = "</｜DSML｜parameter>\n",
                                .text_name_end = "\" string=\"true\">"},
                       .pieces = {"<｜DSML｜invoke name=\"%n\">\n", "%a", "</｜DSML｜invoke>\n"},
                       .before = {begin, "\n"},
                       .after = {end}}}};
}

// <tool_call>NAME
// <arg_key>KEY</arg_key>
// <arg_value>value</arg_value>
// </tool_call>     (4.5, 4.6; without line breaks in 4.7)
ToolFormat glm4() {
    CallForm lines{.head = CallHead::tagged,
                   .sign = "</arg_key>\n<arg_value>",
                   .closing = "</tool_call>",
                   .separator = "\n",
                   .tags = {.begin = "<arg_key>", .name_end = "</arg_key>\n<arg_value>", .value_end = "</arg_value>\n"},
                   .pieces = {"<tool_call>", "%n\n", "%a", "</tool_call>"},
                   .between = {"\n"}};
    CallForm dense = lines;
    dense.sign = {};
    dense.tags.name_end = "</arg_key><arg_value>";
    dense.tags.value_end = "</arg_value>";
    dense.pieces = {"<tool_call>", "%n", "%a", "</tool_call>"};
    dense.between = {};
    return {.name = "glm4",
            .begin = "<tool_call>",
            .end = "</tool_call>",
            .signs = {{"<arg_key>"}},
            .forms = {lines, dense}};
}

// <|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}<|tool_call_end|>
// <|tool_calls_section_end|>
ToolFormat kimi_k2() {
    constexpr std::string_view begin = "<|tool_call_begin|>", separator = "<|tool_call_argument_begin|>",
                               end = "<|tool_call_end|>", all_begin = "<|tool_calls_section_begin|>",
                               all_end = "<|tool_calls_section_end|>";
    return {.name = "kimi_k2",
            .begin = all_begin,
            .end = all_end,
            .signs = {{all_begin}},
            .forms = {{.head = CallHead::block,
                       .opening = begin,
                       .closing = end,
                       .separator = separator,
                       .prefix = "functions.",
                       .pieces = {begin, "functions.%n:", "%i", separator, "%a", end},
                       .before = {all_begin},
                       .after = {all_end}}},
            .ids = CallIds::numbered};
}

// [TOOL_CALLS][{"name": NAME, "arguments": {...}}] or [TOOL_CALLS]NAME[ARGS]{...}
ToolFormat mistral() {
    return {.name = "mistral",
            .begin = "[TOOL_CALLS]",
            .end = "",
            .signs = {{"[TOOL_CALLS]"}},
            .forms = {{.head = CallHead::named,
                       .sign = "[ARGS]",
                       .opening = "[TOOL_CALLS]",
                       .pieces = {"[TOOL_CALLS]", "%n", "[ARGS]", "%a"}},
                      listed_objects("[TOOL_CALLS]", "")},
            .ids = CallIds::nine};
}

// <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>, after <|start|>assistant
ToolFormat harmony() {
    return {.name = "harmony",
            .begin = "to=functions.",
            .end = "<|call|>",
            .signs = {{"<|channel|>", "<|call|>"}},
            .forms = {{.head = CallHead::message,
                       .pieces = {"to=functions.%n ", "<|constrain|>", "json", "<|message|>", "%a"},
                       .perhaps = {"<|start|>", "assistant"},
                       .header = {"<|channel|>", "commentary "}}},
            .one_call = true};
}

// <|tool_call|>[{"name": NAME, "arguments": {...}}]     (Granite 3)
ToolFormat granite() {
    return {.name = "granite",
            .begin = "<|tool_call|>",
            .end = "",
            .signs = {{"<|tool_call|>"}},
            .forms = {listed_objects("<|tool_call|>", "")}};
}

// <|tool_call|>[{"name": NAME, "arguments": {...}}]<|/tool_call|>
ToolFormat phi4_mini() {
    return {.name = "phi4_mini",
            .begin = "<|tool_call|>",
            .end = "<|/tool_call|>",
            .signs = {{"<|tool_call|>", "<|/tool_call|>"}},
            .forms = {listed_objects("<|tool_call|>", "<|/tool_call|>")}};
}

constexpr std::string_view function_begin = "<function=", function_end = "</function>";

// <minimax:tool_call>
// <invoke name="NAME">
// <parameter name="KEY">value</parameter>
// </invoke>
// </minimax:tool_call>
ToolFormat minimax_m2() {
    return {.name = "minimax_m2",
            .begin = "<minimax:tool_call>",
            .end = "</minimax:tool_call>",
            .signs = {{"<minimax:tool_call>"}},
            .forms = {{.head = CallHead::tagged,
                       .opening = "<invoke name=\"",
                       .closing = "</invoke>",
                       .separator = "\">",
                       .tags = {.begin = "<parameter name=\"", .name_end = "\">", .value_end = "</parameter>\n"},
                       .pieces = {"<invoke name=\"%n\">\n", "%a", "</invoke>\n"},
                       .before = {"<minimax:tool_call>", "\n"},
                       .after = {"</minimax:tool_call>"}}}};
}

// <TOOLCALL>[{"name": NAME, "arguments": {...}}]</TOOLCALL>
ToolFormat nemotron() {
    return {.name = "nemotron",
            .begin = "<TOOLCALL>",
            .end = "</TOOLCALL>",
            .signs = {{"<TOOLCALL>"}},
            .forms = {listed_objects("<TOOLCALL>", "</TOOLCALL>")}};
}

// <seed:tool_call>
// <function=NAME>
// <parameter=KEY>value</parameter>
// </function>
// </seed:tool_call>
ToolFormat seed_oss() {
    return {.name = "seed_oss",
            .begin = "<seed:tool_call>",
            .end = "</seed:tool_call>",
            .signs = {{"<seed:tool_call>"}},
            .forms = {{.head = CallHead::tagged,
                       .opening = function_begin,
                       .closing = function_end,
                       .separator = ">",
                       .tags = {.begin = "<parameter=", .name_end = ">", .value_end = "</parameter>\n"},
                       .pieces = {"<seed:tool_call>", "\n<function=%n>\n", "%a", "</function>\n", "</seed:tool_call>"},
                       .between = {"\n"}}}};
}

// <tool_call>
// {"name": NAME, "arguments": {...}}
// </tool_call>     or, in Qwen3-Coder, Qwen3.5 and Nemotron 3:
// <tool_call>
// <function=NAME>
// <parameter=KEY>
// value
// </parameter>
// </function>
// </tool_call>
ToolFormat hermes() {
    return {
        .name = "hermes",
        .begin = "<tool_call>",
        .end = "</tool_call>",
        .signs = {{"<tool_call>"}},
        .forms = {{.head = CallHead::tagged,
                   .sign = function_begin,
                   .opening = function_begin,
                   .closing = function_end,
                   .separator = ">",
                   .tags = {.begin = "<parameter=", .name_end = ">\n", .value_end = "\n</parameter>\n"},
                   .pieces = {"<tool_call>", "\n<function=%n>\n", "%a", "</function>\n", "</tool_call>"},
                   .between = {"\n"}},
                  {.closing = "</tool_call>",
                   .pieces = {"<tool_call>", "\n", R"({"name": %j, "arguments": )", "%a", "}", "\n", "</tool_call>"},
                   .between = {"\n"}}}};
}

// <|tool_call_start|>[NAME(KEY="text", KEY=[1, True]), NAME()]<|tool_call_end|>, or objects as in Granite's format
ToolFormat lfm2() {
    constexpr std::string_view begin = "<|tool_call_start|>", end = "<|tool_call_end|>";
    CallForm objects = listed_objects(begin, end);
    objects.sign = R"('{"name": "')";
    return {.name = "lfm2",
            .begin = begin,
            .end = end,
            .signs = {{begin}, {"<|tool_list_start|>"}},
            .forms = {objects,
                      {.head = CallHead::literal,
                       .separator = "(",
                       .notation = {.name_end = "=", .between = ", ", .close = ")", .python = true},
                       .pieces = {"%n(", "%a", ")"},
                       .before = {begin, "["},
                       .between = {", "},
                       .after = {"]", end}}}};
}

// <|tool_call>call:NAME{KEY:<|"|>text<|"|>,KEY:{KEY:[1,true]}}<tool_call|>
ToolFormat gemma4() {
    return {
        .name = "gemma4",
        .begin = "<|tool_call>",
        .end = "<tool_call|>",
        .signs = {{"<|tool_call>"}},
        .forms = {{.head = CallHead::literal,
                   .opening = "call:",
                   .separator = "{",
                   .notation = {.name_end = ":", .between = ",", .close = "}", .quote = "<|\"|>", .bare_keys = true},
                   .pieces = {"<|tool_call>", "call:%n{", "%a", "}", "<tool_call|>"}}}};
}

// {"name": NAME, "parameters": {...}} as the whole answer, perhaps after <|python_tag|>
ToolFormat llama3() {
    return {.name = "llama3",
            .begin = "",
            .end = "",
            .lead = "<|python_tag|>",
            .signs = {{"<|python_tag|>"}, {"ipython", "\"parameters\""}},
            .forms = {{.pieces = {R"({"name": %j, "parameters": )", "%a", "}"}}},
            .one_call = true};
}

std::vector<ToolFormat> make_tool_formats() {
    return {deepseek_v3(),
            deepseek_tags("deepseek_v4", "<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>", "tool_calls>"),
            deepseek_tags("deepseek_v32", "<｜DSML｜function_calls>", "</｜DSML｜function_calls>", "function_calls>"),
            harmony(),
            kimi_k2(),
            phi4_mini(),
            granite(),
            mistral(),
            nemotron(),
            minimax_m2(),
            seed_oss(),
            lfm2(),
            gemma4(),
            glm4(),
            hermes(),
            llama3()};
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

std::string_view ArgumentTags::value_close() const {
    const size_t first = value_end.find_first_not_of(" \t\r\n");
    if (first == value_end.npos) return {};
    return value_end.substr(first, value_end.find_last_not_of(" \t\r\n") + 1 - first);
}

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

TaggedObject tagged_parameters(const CallForm& form, const Json& parameters) {
    if (form.head == CallHead::literal) {
        const ArgumentNotation& notation = form.notation;
        TaggedObject out{.name_end = std::string(notation.name_end),
                         .between = std::string(notation.between),
                         .no_plain_texts = true,
                         .notation = {.quote = std::string(notation.quote), .bare_keys = notation.bare_keys}};
        if (notation.python) out.notation.yes = "True", out.notation.no = "False", out.notation.null = "None";
        if (!notation.quote.empty()) out.closing.emplace_back(notation.quote);
        return out;
    }
    TaggedObject out{.name_begin = std::string(form.tags.begin),
                     .name_end = std::string(form.tags.name_end),
                     .value_end = std::string(form.tags.value_end),
                     .text_name_end = std::string(form.tags.text_name_end),
                     .closing = {std::string(form.tags.value_close()), std::string(form.closing)}};
    if (!parameters.is_object()) return out;
    if (const auto properties = parameters.find("properties");
        properties != parameters.end() && properties->is_object())
        for (const auto& [name, schema] : properties->items()) {
            const auto type = schema.is_object() ? schema.find("type") : schema.end();
            const bool typed = schema.is_object() && type != schema.end();
            out.text[name] = typed && *type == "string";
            const Json types = typed && type->is_string() ? Json::array({*type}) : typed ? *type : Json();
            if (types.is_array() && std::ranges::find(types, Json("string")) == types.end())
                out.never_texts.insert(name);
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
GrammarPiece input_piece(const std::string& grammar, const CallForm& form) {
    const std::string name = input_parameter;
    const ArgumentTags& tags = form.tags;
    if (form.head == CallHead::literal) {
        const bool json = form.notation.quote.empty();
        const std::string_view quote = json ? "\"" : form.notation.quote;
        return {.ebnf = grammar,
                .spelling = json ? Spelling::json : Spelling::plain,
                .before = fmt::format("{}{}{}", name, form.notation.name_end, quote),
                .after = std::string(quote)};
    }
    if (form.head == CallHead::tagged)
        return {.ebnf = grammar,
                .before = fmt::format("{}{}{}", tags.begin, name,
                                      tags.text_name_end.empty() ? tags.name_end : tags.text_name_end),
                .after = std::string(tags.value_end)};
    return {.ebnf = grammar, .spelling = Spelling::json, .before = "{\"" + name + "\": \"", .after = "\"}"};
}

}  // namespace

bool holds_control_token(const Tokenizer& tokenizer, std::string_view text) {
    return std::ranges::any_of(tokenizer.added_tokens(), [&](TokenId id) {
        const std::string_view token = tokenizer.token(id).value_or("");
        return tokenizer.is_special(id) && !token.empty() && holds(text, token);
    });
}

GrammarStructure tool_structure(const ToolFormat& format, const Json& tools, size_t most, std::string_view source,
                                const Tokenizer& tokenizer, const InputGrammars& grammars, bool whole) {
    const CallForm& form = format.written(source);
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
    if (whole) {
        out.perhaps = texts(form.perhaps);
        std::vector<GrammarPiece> header = texts(form.header);
        out.before.insert(out.before.begin(), header.begin(), header.end());
    }
    for (const Json& tool : tools) {
        const Json& function = tool["function"];
        const std::string name = function["name"].get<std::string>();
        const Json parameters = object_schema(function.value("parameters", Json()));
        GrammarPiece arguments{.schema = std::make_shared<const Json>(parameters)};
        if (form.head == CallHead::tagged || form.head == CallHead::literal) {
            TaggedObject encoding = tagged_parameters(form, parameters);
            if (holds_control_token(tokenizer, encoding.notation.quote))
                encoding.notation.quote = expression::control_text(encoding.notation.quote);
            arguments.tagged = std::make_shared<const TaggedObject>(std::move(encoding));
        }
        if (const auto input = grammars.find(name); input != grammars.end())
            arguments = input_piece(input->second, form);
        std::vector<GrammarPiece> call;
        for (const std::string_view piece : form.pieces)
            call.push_back(piece == "%a"   ? arguments
                           : piece == "%i" ? GrammarPiece{.ebnf = "start: /0|[1-9][0-9]{0,3}/"}
                                           : text(with_name(piece, name)));
        out.one_of.push_back(std::move(call));
    }
    return out;
}

}  // namespace nibble
