// Parsed tokenizer.json. The vocabulary and merges, about a hundred thousand entries each, are vectors; the rest is a
// small JSON document.
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

// Errors: not JSON, repeated keys outside the vocabulary, a vocabulary or merges of another form.
Result<TokenizerJson> parse_tokenizer_json(std::string_view text);

// Returns the string field `type` of a component. `what` names the component in errors.
Result<std::string> component_type(const Json& component, std::string_view what);
// Reads a field; json_flag has a default. Errors name the field.
Result<bool> json_flag(const Json& object, const char* field, bool missing);
Result<std::string> json_string(const Json& object, const char* field);

}  // namespace nibble
