// Reads the vocabulary of a BPE model from tokenizer.json (Hugging Face's tokenizers library). The vocabulary and the
// merges, a hundred thousand entries each, are vectors; the rest is a small JSON document.
#pragma once

#include "base/json.h"

#include <string>
#include <utility>
#include <vector>

namespace nibble {

struct TokenizerFile {
    Json document;                                             // the file without model.vocab and model.merges
    std::vector<std::pair<std::string, uint64_t>> vocabulary;  // pairs (token, id) of model.vocab; empty: it is not an
                                                               // object
    std::vector<std::pair<std::string, std::string>> merges;

    // Returns a field of "model"; null: it is absent.
    Json model(const char* field) const;
};

// Parses the file. Errors: invalid JSON, duplicate keys, objects of over 4096 keys outside the vocabulary, merges that
// do not have two parts.
Result<TokenizerFile> parse_tokenizer_file(std::string_view text);

}  // namespace nibble
