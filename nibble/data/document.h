// Tokenizes one document: a text, or a conversation rendered by the chat template with a loss on the assistant's
// messages.
#pragma once

#include "base/json.h"
#include "data/source.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

#include <ctime>
#include <optional>

namespace nibble {

// The tokens of a conversation that are labels. `last`: only those of the assistant's last message, for templates that
// render an answer differently once another message follows.
enum class LossOn : uint8_t { assistant, last, all };

struct DocumentText {
    const Tokenizer* tokenizer = nullptr;
    const ChatTemplate* chat = nullptr;  // may be null
    Json variables = Json::object();     // variables of the template: bos_token, eos_token, ...
    std::optional<TokenId> end_token;    // appended to every text; conversations end as the template ends them
    LossOn loss = LossOn::assistant;
    std::optional<std::tm> now;  // time for a template's strftime_now; without it such a template is an error
};

struct TokenDocument {
    std::vector<TokenId> ids;
    std::vector<bool> learned;  // per token: whether it is a label of the loss; empty: all are
};

// Tokenizes a row (data/rows.h), or the text with the tokens that the tokenizer adds around a text. Control tokens in
// texts and messages stay text. Errors: invalid UTF-8 (with the position); a line that is neither; messages without a
// template; a template that renders the beginning of a conversation differently when more messages follow; a tokenizer
// that does not reproduce the text (no mask can be placed then).
Result<TokenDocument> tokenize_document(const RawDocument& document, const DocumentText& text);

}  // namespace nibble
