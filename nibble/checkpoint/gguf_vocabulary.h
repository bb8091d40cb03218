// The token list of a GGUF file that is to be written, as llama.cpp reads it: texts, kinds, scores, special tokens.
#pragma once

#include "base/json_fields.h"
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
    std::vector<float> scores;  // empty: none are written
    std::unordered_map<std::string, uint64_t> ids;

    void resize(size_t size);
    // Errors: an id beyond the size, an id that another text has.
    Status place(const std::string& text, uint64_t id, TokenType type);
    void pad();  // names for ids that no token has
    // tokenizer.ggml.tokens, .token_type, .scores; leaves this one empty but for `ids`.
    void write(GgufHeader& out);
    // tokenizer.ggml.*_token_id: as tokenizer_config.json names them, else as config.json numbers them.
    void write_special_tokens(const Json& config, const Json& tokenizer_config, GgufHeader& out) const;

private:
    size_t size_ = 0;
};

// The text of a token that tokenizer_config.json names, as a string or as an object with "content".
std::optional<std::string> named_token(const Json& tokenizer_config, const char* field);

// tokenizer.* of a tokenizer.model. llama.cpp's "llama" tokenizer computes what sentencepiece's BPE computes. Errors:
// not a model of that kind (Unigram, a precompiled normalization, spaces as suffixes), more pieces than `vocabulary`.
Status write_sentencepiece(const ExportSpec& spec, std::string_view model, const Json& tokenizer_config,
                           int64_t vocabulary, GgufHeader& out);

}  // namespace nibble
