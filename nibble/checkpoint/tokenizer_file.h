// tokenizer.json of Hugging Face's tokenizers library, read as far as a vocabulary of BPE needs. The vocabulary and the
// merges, a hundred thousand entries each, are vectors; the rest is a small JSON document.
#pragma once

#include "base/json.h"

#include <string>
#include <utility>
#include <vector>

namespace nibble {

struct TokenizerFile {
    Json document;                                             // without model.vocab and model.merges
    std::vector<std::pair<std::string, uint64_t>> vocabulary;  // of "model"; empty when it is not an object
    std::vector<std::pair<std::string, std::string>> merges;

    // A field of "model"; null when it is not there.
    Json model(const char* field) const;
};

// Errors: what is not JSON, keys that come twice, objects of over 4096 keys outside the vocabulary, merges that are not
// two parts.
Result<TokenizerFile> parse_tokenizer_file(std::string_view text);

}  // namespace nibble
