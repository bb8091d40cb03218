// A grammar restricts the text of an answer: a regular expression, a JSON schema, a list of choices or an EBNF grammar,
// compiled to a pushdown automaton over bytes. A Grammar is independent of tokens; grammar/matcher.h combines it with a
// vocabulary.
//
//   NIBBLE_TRY(auto grammar, Grammar::from_json_schema(schema));
//   NIBBLE_TRY(auto vocabulary, GrammarVocabulary::of(tokenizer, end_tokens, logits));   // once per model
//   GrammarMatcher matcher(std::make_shared<const GrammarTokens>(grammar, vocabulary));  // GrammarTokens: once per
//   grammar
//
// An accepted prefix is never a dead end: parts that cannot be completed are removed. A Grammar is immutable; all
// functions are thread-safe.
#pragma once

#include "base/error.h"
#include "base/json.h"
#include "grammar/expression.h"
#include "grammar/limits.h"
#include "grammar/schema_options.h"

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

struct PushdownAutomaton;
class GrammarBudget;

// A fixed or free part of a text, for formats of tool calls.
struct GrammarPiece {
    std::string text;                            // literal text
    bool control = false;                        // `text` is a control token
    std::shared_ptr<const Json> schema;          // if set, a document of this schema replaces `text`
    std::shared_ptr<const TaggedObject> tagged;  // how the document, an object, is encoded; null: as JSON
    std::string ebnf;                            // if set, a text of this grammar between `before` and `after`
    Spelling spelling = Spelling::plain;         // for `ebnf`
    std::string before, after;
};
struct GrammarStructure {
    std::vector<GrammarPiece> perhaps;  // may be absent
    std::vector<GrammarPiece> before;
    std::vector<std::vector<GrammarPiece>> one_of;  // alternatives; at least one is used
    std::vector<GrammarPiece> between;
    size_t most = 1;  // maximum number of alternatives in a row, separated by `between`
    std::vector<GrammarPiece> after;
};

class Grammar {
public:
    // Supports the part of JSON Schema (draft 2020-12) that grammar/json_schema.h lists. Errors name the position in
    // the schema ("#/properties/a/pattern: ..."): an unsupported keyword, a schema that no document satisfies.
    static Result<std::shared_ptr<const Grammar>> from_json_schema(const Json& schema, const SchemaOptions& = {},
                                                                   const GrammarLimits& = {});
    // Accepts any JSON object.
    static Result<std::shared_ptr<const Grammar>> json_object(const SchemaOptions& = {}, const GrammarLimits& = {});
    // The whole answer must match (grammar/regex_parser.h).
    static Result<std::shared_ptr<const Grammar>> from_regex(std::string_view pattern, const GrammarLimits& = {});
    static Result<std::shared_ptr<const Grammar>> from_choices(std::span<const std::string> choices,
                                                               const GrammarLimits& = {});
    // Reads llama.cpp's GBNF or Lark (grammar/ebnf_parser.h). Errors name the line.
    static Result<std::shared_ptr<const Grammar>> from_ebnf(std::string_view text, const GrammarLimits& = {});
    static Result<std::shared_ptr<const Grammar>> from_structure(const GrammarStructure& structure,
                                                                 const SchemaOptions& = {}, const GrammarLimits& = {});

    // rules[0] is the start.
    static Result<std::shared_ptr<const Grammar>> compile(const std::vector<ExprPtr>& rules,
                                                          const std::vector<std::string>& names, GrammarBudget& budget);

    const PushdownAutomaton& automaton() const { return *automaton_; }
    const GrammarLimits& limits() const { return limits_; }
    // Returns true if the grammar accepts the whole `text`.
    bool matches(std::string_view text) const;

private:
    Grammar(std::unique_ptr<const PushdownAutomaton> automaton, const GrammarLimits& limits);
    std::shared_ptr<const PushdownAutomaton> automaton_;
    GrammarLimits limits_;
};

}  // namespace nibble
