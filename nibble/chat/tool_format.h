// Formats of tool calls.
#pragma once

#include "base/json.h"
#include "grammar/grammar.h"
#include "text/tokenizer.h"

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

struct ToolFormat {
    std::string_view name;
    std::string_view begin;  // text with which calls begin; empty: the answer's first brace
    std::string_view end;    // text with which calls end; empty: the end of the answer
};

// Returns the known formats.
// hermes: <tool_call>{"name", "arguments"}</tool_call>, or <function=f><parameter=p>value inside the tags (Qwen3-Coder,
// Nemotron 3).
// llama3: {"name", "parameters"} as the whole answer, optionally after <|python_tag|>.
// mistral: [TOOL_CALLS][{...}] or [TOOL_CALLS]name[ARGS]{...}.
// nemotron: <TOOLCALL>[{...}]</TOOLCALL>.
// deepseek_v3: its tags with the name and a block of JSON, or the name and JSON (V3.1).
const std::vector<ToolFormat>& tool_formats();
const ToolFormat* find_tool_format(std::string_view name);  // null: unknown name

// Tags inside the calls of deepseek_v3.
inline constexpr std::string_view deepseek_call_begin = "<｜tool▁call▁begin｜>",
                                  deepseek_call_end = "<｜tool▁call▁end｜>", deepseek_separator = "<｜tool▁sep｜>";

// Tags of hermes' tagged parameters. A value ends at the first of the two closing tags.
inline constexpr std::string_view parameter_begin = "<parameter=", parameter_close = "</parameter>",
                                  function_begin = "<function=", function_close = "</function>";

// Returns how a tool's tagged parameters are parsed and, for a required call, written. `parameters`: the tool's schema;
// not an object: no schema. A parameter is a text if its schema has "type": "string", or if the schema does not
// describe it.
TaggedObject tagged_parameters(const Json& parameters);

// Grammars (Lark), by name, of functions that take one text as the parameter `input`.
using InputGrammars = std::map<std::string, std::string, std::less<>>;
inline constexpr const char* input_parameter = "input";

// Returns the grammar of an answer that consists of 1 to `most` calls of `tools`. `source`: text of the chat template,
// which determines the variant of the format.
GrammarStructure tool_structure(const ToolFormat& format, const Json& tools, size_t most, std::string_view source,
                                const Tokenizer& tokenizer, const InputGrammars& grammars = {});

}  // namespace nibble
