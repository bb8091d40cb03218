// Tools as Anthropic's messages and OpenAI's responses say them, in the words of chat completions, which templates and
// parsers know (chat/chat_format.h). Errors name the field and the place in it: "'tools': [1].input_schema ...".
#pragma once

#include "server/body_fields.h"
#include "server/chat_turn.h"
#include "server/response_store.h"

namespace nibble {

struct MessagesTurn {
    ChatTurn chat;
    bool thinking = false;  // the client asked for it: reasoning comes as blocks of the answer, else it is left out
};

// The request of POST /v1/messages, without sampling.
Result<MessagesTurn> read_messages_turn(BodyFields& fields, const ServedModel& model);

struct ResponsesTurn {
    ChatTurn chat;
    std::string input;   // the request's own items, each with a type and an id, as JSON
    StoredPtr previous;  // the answer that the conversation goes on from; null: none
    size_t most_calls = SIZE_MAX;
};
// The request of POST /v1/responses, likewise. most_bytes: of the conversation before, as JSON.
Result<ResponsesTurn> read_responses_turn(BodyFields& fields, const ServedModel& model, ResponseStore& store,
                                          size_t most_bytes);

}  // namespace nibble
