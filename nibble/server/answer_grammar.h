// Constraints on an answer in a request: response_format of OpenAI, structured_outputs and guided_* of vLLM, regex,
// ebnf and json_schema of SGLang, grammar and json_schema of llama.cpp.
#pragma once

#include "grammar/matcher.h"
#include "server/body_fields.h"

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>

namespace nibble {

// Recently requested grammars with the token masks found for them. Thread-safe.
class GrammarCache {
public:
    GrammarCache(std::shared_ptr<const GrammarVocabulary> vocabulary, size_t entries = 32, size_t mask_bytes = 8 << 20)
        : vocabulary_(std::move(vocabulary)), entries_(entries), mask_bytes_(mask_bytes) {}

    const std::shared_ptr<const GrammarVocabulary>& vocabulary() const { return vocabulary_; }
    // Returns the grammar of `key`, which `make` makes if it is not cached. Error: that of `make`.
    Result<std::shared_ptr<const GrammarTokens>> get(
        const std::string& key, const std::function<Result<std::shared_ptr<const Grammar>>()>& make);

private:
    std::shared_ptr<const GrammarVocabulary> vocabulary_;
    size_t entries_, mask_bytes_;
    std::mutex mutex_;
    // latest first
    std::list<std::pair<std::string, std::shared_ptr<const GrammarTokens>>> kept_;
};

using GrammarTokensPtr = std::shared_ptr<const GrammarTokens>;

// Sets `grammar` if the body contains a constraint. Errors: two constraints; a schema that is not supported (with the
// place in it); `grammars` is null, because the model's tokens cannot be constrained by a grammar.
Status read_answer_grammar(BodyFields& fields, GrammarCache* grammars, GrammarTokensPtr& grammar);
// Reads {"type": "text"
// "json_object"
// "json_schema", ...}. The schema is in the member "json_schema" or, in /v1/responses, next to the type. Errors: as
// above.
Status read_response_format(BodyFields& fields, std::string_view name, const Json& format, GrammarCache* grammars,
                            GrammarTokensPtr& grammar);

}  // namespace nibble
