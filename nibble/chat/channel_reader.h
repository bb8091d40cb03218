// Parses answers that consist of messages with headers, as GPT-OSS writes them (OpenAI's "harmony" format):
//
//   <|channel|>analysis<|message|>TEXT<|end|><|start|>assistant<|channel|>final<|message|>TEXT<|return|>
//   <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>
//
// The channel `analysis` is reasoning, a message to functions.NAME is a call, and all other messages are content.
#pragma once

#include "chat/answer_parser.h"

#include <string>
#include <string_view>
#include <vector>

namespace nibble {

class ChannelReader {
public:
    // `calls`: messages to functions are calls, not content. `reasoning`: the text begins inside a message of
    // reasoning.
    ChannelReader(bool calls, bool reasoning);

    // Appends the parts that `text` adds and removes what is read from it; calls are numbered from 0 and have no ids.
    // `last`: no more text follows. Text that begins with no header is content; an incomplete header is dropped.
    void read(std::string& text, bool last, std::vector<AnswerPart>& parts);

private:
    bool header(std::string& text, bool last, std::vector<AnswerPart>& parts);
    bool message(std::string& text, bool last, std::vector<AnswerPart>& parts);
    void say(AnswerPart::Kind kind, std::string_view text, std::vector<AnswerPart>& parts);

    bool calls_;
    bool inside_ = false;  // after a header
    AnswerPart::Kind kind_ = AnswerPart::Kind::content;
    bool said_ = false;                                   // text of the current message was returned
    bool said_reasoning_ = false, said_content_ = false;  // by a message before the current one
    size_t count_ = 0;                                    // calls so far
};

}  // namespace nibble
