// Cuts the text of an answer into reasoning, content and tool calls, for one format. What may still become a tag is
// held back, and so is white space that a tag would swallow.
#pragma once

#include "chat/answer_parser.h"
#include "chat/tool_format.h"
#include "chat/tool_reader.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

struct AnswerFormat {
    std::string think_begin, think_end;  // empty: no reasoning
    bool thinking = false;               // the answer begins inside of reasoning
    const ToolFormat* tools = nullptr;   // null: calls are not looked for
    Json tool_list;                      // of the request
    std::string id_seed;                 // random, of one answer: ids of calls are made of it and the call's index
    bool short_ids = false;              // nine letters and digits, as Mistral's templates demand
};

class AnswerScanner {
public:
    explicit AnswerScanner(AnswerFormat format);
    void push(std::string_view text, std::vector<AnswerPart>& parts);
    void finish(std::vector<AnswerPart>& parts, bool cut_off);

private:
    enum class State : uint8_t { begin, reasoning, content_begin, content, calls };
    bool advance(std::vector<AnswerPart>& parts, bool last);
    bool reason(std::vector<AnswerPart>& parts, bool last);
    bool talk(std::vector<AnswerPart>& parts, bool last);
    bool call(std::vector<AnswerPart>& parts, bool last);
    bool begins_call() const;
    std::string id_of(size_t index) const;

    AnswerFormat format_;
    State state_ = State::begin;
    std::string pending_;
    bool cut_off_ = false;
    bool said_ = false;                       // something of the current reasoning or content was given
    std::unique_ptr<ToolCallReader> reader_;  // while calls are read
    size_t calls_ = 0, calls_before_ = 0;     // given; and before this reader's
};

}  // namespace nibble
