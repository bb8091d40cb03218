// Translates requests of Anthropic's messages API and OpenAI's responses API to the form of chat completions, which
// templates and parsers use (chat/chat_format.h). Errors name the field and the place in it: "'tools': [1].input_schema
// ...".
#pragma once

#include "server/body_fields.h"
#include "server/chat_turn.h"
#include "server/response_store.h"

namespace nibble {

struct MessagesTurn {
    ChatTurn chat;
    bool thinking = false;  // the client requested it: reasoning is returned as blocks of the answer; false: it is left
                            // out
};

// Reads the request of POST /v1/messages, without sampling parameters.
Result<MessagesTurn> read_messages_turn(BodyFields& fields, const ServedModel& model, int64_t most_tokens);

struct ResponsesTurn {
    ChatTurn chat;
    std::string input;   // the request's own items, each with a type and an id, as JSON text
    StoredPtr previous;  // the previous answer of the conversation; null: none
    size_t most_calls = SIZE_MAX;
};
// Reads the request of POST /v1/responses, without sampling parameters. most_bytes: limit of the earlier conversation
// as JSON.
Result<ResponsesTurn> read_responses_turn(BodyFields& fields, const ServedModel& model, ResponseStore& store,
                                          size_t most_bytes);

}  // namespace nibble
