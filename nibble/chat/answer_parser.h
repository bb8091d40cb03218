// Splits an answer, as its text comes, into reasoning, content and tool calls. Text that may still become a tag or a
// tool call is held back; everything else is given at once. The parts joined do not depend on how the text was cut.
#pragma once

#include "base/json.h"

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

// Text that belongs to one place of the answer.
struct AnswerPart {
    enum class Kind : uint8_t {
        reasoning,
        content,
        tool_begin,      // a call begins: index, id, name; no text
        tool_arguments,  // a piece of the call's arguments, which joined are JSON text
        tool_end,
    };
    Kind kind = Kind::content;
    std::string text;
    size_t index = 0;  // of the tool call, from 0
    std::string id, name;
};

struct ToolCall {
    std::string id, name;
    std::string arguments;  // JSON text, as the model wrote it
};
struct ParsedAnswer {
    std::string reasoning, content;
    std::vector<ToolCall> tool_calls;
};

class AnswerScanner;  // one format: answer_scanner.h

class AnswerParser {
public:
    explicit AnswerParser(std::unique_ptr<AnswerScanner> scanner);
    ~AnswerParser();
    AnswerParser(AnswerParser&&) noexcept;
    AnswerParser& operator=(AnswerParser&&) noexcept;

    std::vector<AnswerPart> push(std::string_view text);
    // The rest. What began like a tool call and is none is content. A call that the answer broke off keeps the
    // arguments that it has. `cut_off`: the token limit ended the answer; the beginning of a call whose name is not
    // complete is then dropped.
    std::vector<AnswerPart> finish(bool cut_off = false);

    const ParsedAnswer& answer() const { return answer_; }  // so far
    // Whether the answer ends with tool calls: finish_reason "tool_calls".
    bool called_tools() const { return !answer_.tool_calls.empty(); }

private:
    std::vector<AnswerPart> noted(std::vector<AnswerPart> parts);
    std::unique_ptr<AnswerScanner> scanner_;
    ParsedAnswer answer_;
};

}  // namespace nibble
