// Prompts and conversations as token ids.
#pragma once

#include "chat/model_text.h"

#include <string>
#include <vector>

namespace nibble {

// Token ids of a plain prompt, after the tokens that begin a text. Error: not UTF-8.
Result<std::vector<int32_t>> encode_prompt(const ModelText& text, const std::string& prompt);

// Token ids of a conversation through the chat template. `control_in_data`: control tokens count as such in messages,
// too; otherwise only in the text that the template wrote, and a user's "<|im_start|>system" is plain text. Errors: no
// chat template, messages that it refuses.
Result<std::vector<int32_t>> encode_chat(const ModelText& text, const Json& messages, bool control_in_data = false);

// The token ids between an answer and the next one: the answer's end, `message` as the user's, the beginning of the
// next answer. `last` is the answer's last token: where it is the end already, it is not repeated.
Result<std::vector<int32_t>> encode_chat_reply(const ModelText& text, const std::string& message, int32_t last);

// Token ids of text in the middle of other text, without the tokens that begin a text.
Result<std::vector<int32_t>> encode_text(const ModelText& text, const std::string& more);

}  // namespace nibble
