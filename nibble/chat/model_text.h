// Loads the text part of a model from its folder or .gguf file: tokenizer, chat template, variables of the template.
#pragma once

#include "base/json.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

#include <filesystem>
#include <optional>

namespace nibble {

struct ModelText {
    Tokenizer tokenizer;
    std::optional<ChatTemplate> chat;  // no value: the model has none, as most base models
    Json config = Json::object();      // tokenizer_config.json, or its equivalent from a GGUF file
    Json variables = Json::object();  // variables of every rendering: bos_token, eos_token ... of tokenizer_config.json
};

Result<ModelText> open_model_text(const std::filesystem::path& path);
// Loads only the tokenizer.
Result<Tokenizer> open_tokenizer(const std::filesystem::path& path);

}  // namespace nibble
