// Encodes prompts and conversations as token ids.
#pragma once

#include "chat/model_text.h"

#include <string>
#include <vector>

namespace nibble {

// Returns the token ids of a plain prompt, preceded by the tokens that begin a text. Error: not UTF-8.
Result<std::vector<int32_t>> encode_prompt(const ModelText& text, const std::string& prompt);

// Returns the token ids of a conversation rendered by the chat template. `control_in_data`: control tokens in messages
// are encoded as such; otherwise only those in the text of the template, and a user's "<|im_start|>system" is plain
// text. Errors: no chat template, messages that the template rejects.
Result<std::vector<int32_t>> encode_chat(const ModelText& text, const Json& messages, bool control_in_data = false);

// Returns the token ids between an answer and the next one: the end of the answer, `message` as the user's message, the
// beginning of the next answer. `last`: the answer's last token; if it is already the end, the end is not repeated.
Result<std::vector<int32_t>> encode_chat_reply(const ModelText& text, const std::string& message, int32_t last);

// Returns the token ids of text inside other text, without the tokens that begin a text.
Result<std::vector<int32_t>> encode_text(const ModelText& text, const std::string& more);

}  // namespace nibble
