// The token list of a GGUF file to be written, as llama.cpp reads it: texts, kinds, scores, special tokens.
#pragma once

#include "base/fields.h"
#include "checkpoint/gguf_header.h"

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace nibble {

struct GgufVocabulary {
    enum class TokenType : int32_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };
    std::vector<std::string> tokens;
    std::vector<TokenType> types;
    std::vector<float> scores;  // empty: no scores are written
    std::unordered_map<std::string, uint64_t> ids;

    void resize(size_t size);
    // Adds a token. Errors: an id beyond the size, an id that has another text.
    Status place(const std::string& text, uint64_t id, TokenType type);
    void pad();  // fills unused ids with placeholder names
    // Moves the list to tokenizer.ggml.tokens, .token_type and .scores. Afterwards only `ids` may be used.
    void write(GgufHeader& out);
    // Writes tokenizer.ggml.*_token_id: the tokens that tokenizer_config.json names, else the ids of config.json.
    void write_special_tokens(const Json& config, const Json& tokenizer_config, GgufHeader& out) const;

private:
    size_t size_ = 0;
};

// Returns the text of a token that tokenizer_config.json names as a string or as an object with "content".
std::optional<std::string> named_token(const Json& tokenizer_config, const char* field);

// Adds tokenizer.* for a tokenizer.model. llama.cpp's "llama" tokenizer gives the same tokens as sentencepiece's BPE.
// Errors: another kind of model (Unigram, a precompiled normalization, spaces as suffixes), more pieces than
// `vocabulary`.
Status write_sentencepiece(const ExportSpec& spec, std::string_view model, const Json& tokenizer_config,
                           int64_t vocabulary, GgufHeader& out);

}  // namespace nibble
