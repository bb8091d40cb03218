// One turn of a conversation: the prompt that messages become, and how an answer's text is read.
#pragma once

#include "chat/chat_format.h"
#include "server/body_fields.h"
#include "server/client_tools.h"
#include "server/exchange.h"
#include "server/served_model.h"

namespace nibble {

struct ChatTurn {
    std::shared_ptr<const ChatFormat> format;
    ChatRequest asked;
    ChatPrompt prompt;
    ClientTools tools;       // as the client declared them
    bool functions = false;  // asked for in the deprecated field, so the answer has one function_call

    AnswerParser reader() const { return format->parser(asked, prompt); }
};

// What the reader of every choice copies of a turn's tools.
int64_t copied_tools(const HttpExchange& exchange, const ChatTurn& turn);

// Error: no chat template, or what ChatFormat::prompt() finds wrong, with its place. It blames the request's own
// template, its tools, or `field`, which the messages came from.
Result<ChatTurn> make_chat_turn(BodyFields& fields, std::string_view field, const ServedModel& model,
                                ChatRequest asked);
// Error: tools for a model whose chat template calls none in a known format.
Status check_tool_format(BodyFields& fields, const ServedModel& model, const ChatRequest& asked);
// A text that the chat template finds under the name of `variable`.
Status read_template_word(BodyFields& fields, const char* name, const char* variable, ChatRequest& asked);
// From the fields of a chat's body: messages, tools, the template's variables.
Result<ChatTurn> read_chat_turn(BodyFields& fields, const ServedModel& model);
// Holds the answer to `grammar` (may be null), to a tool call where one is demanded, and to the budget of reasoning;
// and lets the engine print the control tokens that the reader needs. Precondition: request.max_tokens is set.
Status hold_answer(const ChatTurn& turn, const ServedModel& model, std::shared_ptr<const GrammarTokens> grammar,
                   Request& request);

}  // namespace nibble
