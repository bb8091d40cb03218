// Divides the text of an answer into reasoning, content and tool calls, for one format. Holds back text that may become
// a tag, and white space that a tag would remove.
#pragma once

#include "chat/answer_parser.h"
#include "chat/channel_reader.h"
#include "chat/tool_format.h"
#include "chat/tool_reader.h"

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

struct AnswerFormat {
    std::string think_begin, think_end;  // empty: the format has no reasoning
    bool thinking = false;               // the answer begins inside reasoning
    const ToolFormat* tools = nullptr;   // null: calls are not recognized
    Json tool_list;                      // tools of the request
    std::string id_seed;                 // random text per answer, from which, with the index of a call, its id is made
    bool channels = false;               // messages with headers: the tags of `tools` and of reasoning do not apply
    size_t earlier_calls = 0;            // calls of the conversation before this answer
};

class AnswerScanner {
public:
    explicit AnswerScanner(AnswerFormat format);
    void push(std::string_view text, std::vector<AnswerPart>& parts);
    void finish(std::vector<AnswerPart>& parts, bool cut_off);

private:
    enum class State : uint8_t { begin, reasoning, content_begin, content, calls, channels };
    bool advance(std::vector<AnswerPart>& parts, bool last);
    bool reason(std::vector<AnswerPart>& parts, bool last);
    bool talk(std::vector<AnswerPart>& parts, bool last);
    bool call(std::vector<AnswerPart>& parts, bool last);
    void number(AnswerPart part, std::vector<AnswerPart>& parts);
    bool begins_call() const;
    std::string id_of(size_t index, std::string_view name) const;

    AnswerFormat format_;
    State state_ = State::begin;
    std::string pending_;
    bool cut_off_ = false;
    bool said_ = false;                       // text of the current reasoning or content was returned
    std::unique_ptr<ToolCallReader> reader_;  // set while calls are read
    std::optional<ChannelReader> channels_;
    size_t calls_ = 0, calls_before_ = 0;  // calls that were returned, and those before this reader's
};

}  // namespace nibble
