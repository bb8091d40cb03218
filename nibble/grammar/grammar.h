// What an answer may say: a regular expression, a JSON schema, a list of choices, or a grammar in EBNF, compiled to a
// pushdown automaton over bytes. A Grammar knows no tokens; grammar/matcher.h joins it with a vocabulary.
//
//   NIBBLE_TRY(auto grammar, Grammar::from_json_schema(schema));
//   NIBBLE_TRY(auto vocabulary, GrammarVocabulary::of(tokenizer, end_tokens, logits));   // once a model
//   GrammarMatcher matcher(std::make_shared<const GrammarTokens>(grammar, vocabulary));  // the first once a grammar
//
// No reading of a prefix that the automaton accepts is a dead end: what cannot be completed was cut away.
// A Grammar is immutable; all functions may be called from several threads.
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

// A text of fixed and free parts, for the formats of tool calls.
struct GrammarPiece {
    std::string text;                            // as it is
    bool control = false;                        // `text` is a control token's
    std::shared_ptr<const Json> schema;          // a document of this schema instead of a text
    std::shared_ptr<const TaggedObject> tagged;  // how the document, an object, is written; null: as JSON
    std::string ebnf;                            // a text of this grammar instead, between `before` and `after`
    Spelling spelling = Spelling::plain;         // of that text
    std::string before, after;
};
struct GrammarStructure {
    std::vector<GrammarPiece> before;
    std::vector<std::vector<GrammarPiece>> one_of;  // at least one of these
    std::vector<GrammarPiece> between;
    size_t most = 1;  // how many of them follow each other, `between` in between
    std::vector<GrammarPiece> after;
};

class Grammar {
public:
    // JSON Schema, draft 2020-12, the part that grammar/json_schema.h lists. Errors name the place in the schema
    // ("#/properties/a/pattern: ..."): a keyword that is not supported, a schema that no document satisfies.
    static Result<std::shared_ptr<const Grammar>> from_json_schema(const Json& schema, const SchemaOptions& = {},
                                                                   const GrammarLimits& = {});
    // Any JSON object.
    static Result<std::shared_ptr<const Grammar>> json_object(const SchemaOptions& = {}, const GrammarLimits& = {});
    // The whole answer matches (grammar/regex_parser.h).
    static Result<std::shared_ptr<const Grammar>> from_regex(std::string_view pattern, const GrammarLimits& = {});
    static Result<std::shared_ptr<const Grammar>> from_choices(std::span<const std::string> choices,
                                                               const GrammarLimits& = {});
    // GBNF of llama.cpp or Lark (grammar/ebnf_parser.h). Errors name the line.
    static Result<std::shared_ptr<const Grammar>> from_ebnf(std::string_view text, const GrammarLimits& = {});
    static Result<std::shared_ptr<const Grammar>> from_structure(const GrammarStructure& structure,
                                                                 const SchemaOptions& = {}, const GrammarLimits& = {});

    // rules[0] is the start.
    static Result<std::shared_ptr<const Grammar>> compile(const std::vector<ExprPtr>& rules,
                                                          const std::vector<std::string>& names, GrammarBudget& budget);

    const PushdownAutomaton& automaton() const { return *automaton_; }
    const GrammarLimits& limits() const { return limits_; }
    // Whether `text` as a whole is of the grammar.
    bool matches(std::string_view text) const;

private:
    Grammar(std::unique_ptr<const PushdownAutomaton> automaton, const GrammarLimits& limits);
    std::shared_ptr<const PushdownAutomaton> automaton_;
    GrammarLimits limits_;
};

}  // namespace nibble
