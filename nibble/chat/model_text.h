// The text side of a model, from its folder or .gguf file: tokenizer, chat template, and what the template knows.
#pragma once

#include "base/json.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

#include <filesystem>
#include <optional>

namespace nibble {

struct ModelText {
    Tokenizer tokenizer;
    std::optional<ChatTemplate> chat;  // most base models have none
    Json config = Json::object();      // tokenizer_config.json, or what a GGUF file says of it
    Json variables = Json::object();   // of every rendering: bos_token, eos_token ... as tokenizer_config.json says
};

Result<ModelText> open_model_text(const std::filesystem::path& path);
// The tokenizer alone.
Result<Tokenizer> open_tokenizer(const std::filesystem::path& path);

}  // namespace nibble
