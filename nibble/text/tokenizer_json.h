// tokenizer.json as parsed text: the vocabulary and the merges, a hundred thousand entries each, as vectors; the rest
// as a small JSON document.
#pragma once

#include "base/json.h"

#include <string>
#include <utility>
#include <vector>

namespace nibble {

struct TokenizerJson {
    Json document;                                             // without model.vocab and model.merges
    std::vector<std::pair<std::string, uint64_t>> vocabulary;  // model.vocab as an object (BPE)
    std::vector<std::pair<std::string, double>> scored;        // model.vocab as a list (Unigram)
    std::vector<std::pair<std::string, std::string>> merges;
};

// Errors: not JSON, keys that come twice outside the vocabulary, a vocabulary or merges of another shape.
Result<TokenizerJson> parse_tokenizer_json(std::string_view text);

// The string field `type` of a component, for messages and for choosing.
Result<std::string> component_type(const Json& component, std::string_view what);
// Fields with defaults; errors name the field.
Result<bool> json_flag(const Json& object, const char* field, bool missing);
Result<std::string> json_string(const Json& object, const char* field);

}  // namespace nibble
