// Splits an answer, as its text arrives, into reasoning, content and tool calls. Text that may still become a tag or a
// tool call is held back; all other text is returned at once. The concatenated parts do not depend on how the text was
// divided.
#pragma once

#include "base/json.h"

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

// A piece of text of one part of the answer.
struct AnswerPart {
    enum class Kind : uint8_t {
        reasoning,
        content,
        tool_begin,      // begins a call: has index, id and name, but no text
        tool_arguments,  // a piece of the call's arguments; all pieces together are JSON text
        tool_end,
    };
    Kind kind = Kind::content;
    std::string text;
    size_t index = 0;  // index of the tool call, starting at 0
    std::string id, name;
};

struct ToolCall {
    std::string id, name;
    std::string arguments;  // JSON text as the model wrote it
};
struct ParsedAnswer {
    std::string reasoning, content;
    std::vector<ToolCall> tool_calls;
};

class AnswerScanner;  // parser of one format: answer_scanner.h

class AnswerParser {
public:
    explicit AnswerParser(std::unique_ptr<AnswerScanner> scanner);
    ~AnswerParser();
    AnswerParser(AnswerParser&&) noexcept;
    AnswerParser& operator=(AnswerParser&&) noexcept;

    std::vector<AnswerPart> push(std::string_view text);
    // Returns the remaining text. Text that began like a tool call but is not one becomes content. A call that the end
    // of the answer interrupts keeps its arguments so far. `cut_off`: the token limit ended the answer; a call whose
    // name is incomplete is then dropped.
    std::vector<AnswerPart> finish(bool cut_off = false);

    const ParsedAnswer& answer() const { return answer_; }  // the answer so far
    // Returns true if the answer contains tool calls: finish_reason "tool_calls".
    bool called_tools() const { return !answer_.tool_calls.empty(); }

private:
    std::vector<AnswerPart> noted(std::vector<AnswerPart> parts);
    std::unique_ptr<AnswerScanner> scanner_;
    ParsedAnswer answer_;
};

}  // namespace nibble
