// Formats of tool calls.
#pragma once

#include "base/json.h"
#include "grammar/grammar.h"
#include "text/tokenizer.h"

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

// How a call begins, which decides how the rest of it is read (chat/tool_reader.h).
enum class CallHead : uint8_t {
    object,   // an object with the members "name" and "arguments" or "parameters"
    named,    // name{...}, name[ARGS]{...} or name[CALL_ID]id[ARGS]{...}
    block,    // name<separator>{...}, or any word, <separator>, the name and a block of JSON
    message,  // a message with a header: chat/channel_reader.h
    literal,  // name<separator>, then arguments in a notation that is not JSON: chat/literal_reader.h
    tagged,   // name<separator>, then arguments between tags
};

// Tags of arguments, as they are written: `begin` NAME `name_end` VALUE `value_end`. When they are read, white space
// between and inside tags does not count, but all of a value does. One exception: a line break that ends `name_end` or
// begins `value_end` is not a part of the value.
struct ArgumentTags {
    std::string_view begin = {}, name_end = {}, value_end = {};
    // Replaces name_end before a text. Empty: the tool's schema determines which values are texts.
    std::string_view text_name_end = {};

    std::string_view value_close() const;  // value_end without white space
    bool lines() const { return value_end.starts_with('\n'); }
};

// Notation of literal arguments, which end with `close`: NAME `name_end` VALUE `between` NAME `name_end` VALUE ...
struct ArgumentNotation {
    std::string_view name_end = {}, between = {}, close = {};
    std::string_view quote = {};  // around strings, which are literal text; empty: strings of Python
    bool bare_keys = false;       // names in nested objects have no quotes
    bool python = false;          // True, False and None
};

// One of the forms in which a format writes a call.
struct CallForm {
    CallHead head = CallHead::object;
    std::string_view sign = {};       // chat templates that hold this text ask for the form; empty: all others
    std::string_view opening = {};    // text before a call when it is read; objects begin with their brace
    std::string_view closing = {};    // ends a call wherever it stands outside of a string; empty: nothing does
    std::string_view separator = {};  // text around the name in a block; ends a tagged name
    ArgumentTags tags = {};           // tags of a tagged call
    ArgumentNotation notation = {};   // notation of a literal call
    std::string_view prefix = {};     // before the name in a block; then ':' and a number follow the name
    // Pieces of a written call: %n is the name, %j the name as JSON; %a and %i, pieces of their own, are the arguments
    // and any number.
    std::vector<std::string_view> pieces = {};
    std::vector<std::string_view> before = {}, between = {}, after = {};  // all calls, and two of them
    // For an answer that consists of calls only: text that may precede it, and text between that and `before`.
    std::vector<std::string_view> perhaps = {}, header = {};
};

enum class CallIds : uint8_t {
    random,    // call_ and 24 letters and digits
    nine,      // nine letters and digits, as Mistral's templates require
    numbered,  // functions.NAME:N, where N counts the calls of the conversation: templates write the id as the name
};

struct ToolFormat {
    std::string_view name;
    std::string_view begin;      // text with which calls begin; empty: the answer's first brace
    std::string_view end;        // text with which calls end; empty: the end of the answer
    std::string_view lead = {};  // may precede the first call
    // A chat template is of this format if it holds all texts of one of these lists.
    std::vector<std::vector<std::string_view>> signs = {};
    std::vector<CallForm> forms = {};  // all are read; the first that the template asks for is written
    bool one_call = false;             // an answer is written with one call at most
    CallIds ids = CallIds::random;

    const CallForm* form(CallHead head) const;  // null: none has this head
    const CallForm& written(std::string_view chat_template) const;
};

// In the order in which a chat template is looked at. tool_format.cpp shows a call of each.
const std::vector<ToolFormat>& tool_formats();
const ToolFormat* find_tool_format(std::string_view name);         // null: unknown
const ToolFormat* tool_format_of(std::string_view chat_template);  // null: it has none

// Tags inside the calls of deepseek_v3.
inline constexpr std::string_view deepseek_call_begin = "<｜tool▁call▁begin｜>",
                                  deepseek_call_end = "<｜tool▁call▁end｜>", deepseek_separator = "<｜tool▁sep｜>";

// Returns how the arguments of a tool are parsed and, for a required call, written. `form`: a tagged or literal one.
// `parameters`: the tool's schema; not an object: no schema. A parameter is a text if its schema has "type": "string",
// or if the schema does not describe it.
TaggedObject tagged_parameters(const CallForm& form, const Json& parameters);

// Grammars (Lark), by name, of functions that take one text as the parameter `input`.
using InputGrammars = std::map<std::string, std::string, std::less<>>;
inline constexpr const char* input_parameter = "input";

// Returns the grammar of 1 to `most` calls of `tools`. `source`: text of the chat template, which determines the
// variant of the format. `whole`: the calls are the whole answer after the reasoning; else the text follows
// ToolFormat::begin.
GrammarStructure tool_structure(const ToolFormat& format, const Json& tools, size_t most, std::string_view source,
                                const Tokenizer& tokenizer, const InputGrammars& grammars = {}, bool whole = true);

// Returns whether a text contains a control token of the tokenizer.
bool holds_control_token(const Tokenizer& tokenizer, std::string_view text);

}  // namespace nibble
