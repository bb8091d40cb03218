// The formats in which models call tools.
#pragma once

#include "base/json.h"
#include "chat/answer_parser.h"
#include "grammar/grammar.h"
#include "text/tokenizer.h"

#include <optional>
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

// The calls of `body`, the text between begin and end; `whole`: the end was there, else the answer broke off and its
// last call keeps the arguments that it has. Nothing: these are no calls. `tools` (may be null) say which parameters of
// <parameter=p> are not texts.
std::optional<std::vector<ToolCall>> read_tool_calls(const ToolFormat& format, std::string_view body, bool whole,
                                                     const Json& tools);

// An answer that is calls of `tools` and nothing else. `source`: of the chat template, which tells variants apart.
GrammarStructure tool_structure(const ToolFormat& format, const Json& tools, bool parallel, std::string_view source,
                                const Tokenizer& tokenizer);

}  // namespace nibble
