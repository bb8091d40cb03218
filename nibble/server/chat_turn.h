// One turn of a conversation: the prompt that messages become, and how an answer's text is read.
#pragma once

#include "chat/answer_parser.h"
#include "server/body_fields.h"
#include "server/served_model.h"

namespace nibble {

// Reads the text of one choice, as it comes.
class AnswerReader {
public:
    std::vector<AnswerPart> push(std::string_view text);
    std::vector<AnswerPart> finish() { return {}; }
    bool called_tools() const { return false; }
};

struct ChatTurn {
    std::string text;  // of the prompt
    std::vector<int32_t> prompt;

    AnswerReader reader() const { return {}; }
};

// From the fields of a chat's body: messages, tools, the template's variables. Error: names the place.
Result<ChatTurn> read_chat_turn(BodyFields& fields, const ServedModel& model, Request& request);
// The same from messages that another API's body became.
struct TurnOptions {
    Json variables = Json::object();  // of the template, beside the model's
    bool generation_prompt = true, special = false;
};
Result<ChatTurn> make_chat_turn(const ServedModel& model, const Json& messages, const TurnOptions& options);
// Messages with content as texts: lists of text parts are joined by line ends, as vLLM does.
Result<Json> plain_messages(const Json& messages);

}  // namespace nibble
