// What a request wants its answers held to: response_format of OpenAI, structured_outputs and guided_* of vLLM, regex,
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

// The grammars that requests asked for lately, with the masks that were found for them. Used by several threads.
class GrammarCache {
public:
    GrammarCache(std::shared_ptr<const GrammarVocabulary> vocabulary, size_t entries = 32, size_t mask_bytes = 8 << 20)
        : vocabulary_(std::move(vocabulary)), entries_(entries), mask_bytes_(mask_bytes) {}

    const std::shared_ptr<const GrammarVocabulary>& vocabulary() const { return vocabulary_; }
    // Of the grammar that `make` makes, which `key` names.
    Result<std::shared_ptr<const GrammarTokens>> get(
        const std::string& key, const std::function<Result<std::shared_ptr<const Grammar>>()>& make);

private:
    std::shared_ptr<const GrammarVocabulary> vocabulary_;
    size_t entries_, mask_bytes_;
    std::mutex mutex_;
    std::list<std::pair<std::string, std::shared_ptr<const GrammarTokens>>> kept_;  // the latest first
};

using GrammarTokensPtr = std::shared_ptr<const GrammarTokens>;

// Sets `grammar` where the body wants one. Error: two of them, a schema that is not supported (with the
// place in it); `grammars` null: the model's tokens cannot be held to a grammar.
Status read_answer_grammar(BodyFields& fields, GrammarCache* grammars, GrammarTokensPtr& grammar);
// The same of {"type": "text" | "json_object" | "json_schema", ...}, in which the schema stands below "json_schema" or,
// as /v1/responses has it, beside the type.
Status read_response_format(BodyFields& fields, std::string_view name, const Json& format, GrammarCache* grammars,
                            GrammarTokensPtr& grammar);

}  // namespace nibble
