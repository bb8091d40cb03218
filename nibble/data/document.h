// One document as tokens: a text, or a conversation through the chat template with the loss on what the assistant says.
#pragma once

#include "base/json.h"
#include "data/source.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

#include <ctime>
#include <optional>

namespace nibble {

// Whose tokens of a conversation are labels. `last`: of the assistant's last message only, for templates that render an
// answer otherwise once something follows it.
enum class LossOn : uint8_t { assistant, last, all };

struct DocumentText {
    const Tokenizer* tokenizer = nullptr;
    const ChatTemplate* chat = nullptr;  // may be null
    Json variables = Json::object();     // bos_token, eos_token, ... of the template
    std::optional<TokenId> end_token;    // put behind every text; conversations end as the template ends them
    LossOn loss = LossOn::assistant;
    std::optional<std::tm> now;  // what a template's strftime_now tells; without one such a template is an error
};

struct TokenDocument {
    std::vector<TokenId> ids;
    std::vector<bool> learned;  // a token: whether the loss counts it as a label; empty: all
};

// A row (data/rows.h) or the text itself with the tokens that the tokenizer puts
// around a text. Control tokens in texts and in messages stay text. Errors: not UTF-8 (says where), a line that is
// neither, messages without a template, a template that renders the beginning of a conversation otherwise when it goes
// on, a tokenizer that does not give the text back (then no mask can be placed).
Result<TokenDocument> tokenize_document(const RawDocument& document, const DocumentText& text);

}  // namespace nibble
