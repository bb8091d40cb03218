// The formats in which models call tools.
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
    std::string_view begin;  // what calls begin with; empty: the answer's first brace
    std::string_view end;    // what ends them; empty: the end of the answer
};

// hermes: <tool_call>{"name", "arguments"}</tool_call>, or <function=f><parameter=p>value in the tags (Qwen3-Coder,
// Nemotron 3); llama3: {"name", "parameters"} as the whole answer, perhaps behind <|python_tag|>; mistral:
// [TOOL_CALLS][{...}] or [TOOL_CALLS]name[ARGS]{...}; nemotron: <TOOLCALL>[{...}]</TOOLCALL>; deepseek_v3: its tags
// with the name and a block of JSON, or the name and JSON (V3.1).
const std::vector<ToolFormat>& tool_formats();
const ToolFormat* find_tool_format(std::string_view name);  // null: unknown

// The tags inside of deepseek_v3's calls.
inline constexpr std::string_view deepseek_call_begin = "<｜tool▁call▁begin｜>",
                                  deepseek_call_end = "<｜tool▁call▁end｜>", deepseek_separator = "<｜tool▁sep｜>";

// The tags of hermes' tagged parameters. A value ends at the first of the two that close.
inline constexpr std::string_view parameter_begin = "<parameter=", parameter_close = "</parameter>",
                                  function_begin = "<function=", function_close = "</function>";

// How the tagged parameters of a tool are read and, where a call is demanded, written. `parameters`: the tool's schema
// of them; no object: it says nothing. A parameter is a text where its schema says "type": "string", and where nothing
// in the schema speaks of it.
TaggedObject tagged_parameters(const Json& parameters);

// Functions that take one text, as the parameter `input`: a grammar in Lark that the text is held to, by name.
using InputGrammars = std::map<std::string, std::string, std::less<>>;
inline constexpr const char* input_parameter = "input";

// An answer that is calls of `tools`, at least one and `most` at most, and nothing else. `source`: of the chat
// template, which tells variants apart.
GrammarStructure tool_structure(const ToolFormat& format, const Json& tools, size_t most, std::string_view source,
                                const Tokenizer& tokenizer, const InputGrammars& grammars = {});

}  // namespace nibble
