// One turn of a conversation: the prompt made from the messages, and the parser of the answer's text.
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
    ClientTools tools;       // the tools as the client declared them
    bool functions = false;  // the request used the deprecated field "functions", so the answer has one function_call

    AnswerParser reader() const { return format->parser(asked, prompt); }
};

// Returns the bytes of the turn's tools that every choice's parser copies.
int64_t copied_tools(const HttpExchange& exchange, const ChatTurn& turn);

// Logs once that the chat template leaves the request's tools out of the prompt.
void note_unwritten_tools(const HttpExchange& exchange, const ChatTurn& turn);

// Makes the prompt. Errors: no chat template; an error of ChatFormat::prompt(), with its place. The error names the
// request's own template, its tools, or `field`, which contained the messages.
Result<ChatTurn> make_chat_turn(BodyFields& fields, std::string_view field, const ServedModel& model,
                                ChatRequest asked);
// Error: the request has tools, but the model's chat template has no known format of tool calls.
Status check_tool_format(BodyFields& fields, const ServedModel& model, const ChatRequest& asked);
// Reads the text in the field `name` into the chat template's variable `variable`.
Status read_template_word(BodyFields& fields, const char* name, const char* variable, ChatRequest& asked);
// Reads the fields of a chat request: messages, tools, variables of the template.
// `most_tokens`: ChatRequest::most_tokens.
Result<ChatTurn> read_chat_turn(BodyFields& fields, const ServedModel& model, int64_t most_tokens);
// Constrains the answer: to `grammar` (may be null), to a tool call if one is required, and to the budget of reasoning
// tokens. Also keeps the control tokens that the parser needs in the text. Precondition: request.max_tokens is set.
Status hold_answer(const ChatTurn& turn, const ServedModel& model, std::shared_ptr<const GrammarTokens> grammar,
                   Request& request);

}  // namespace nibble
