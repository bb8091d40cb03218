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

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

struct PushdownAutomaton;
class GrammarBudget;

// White space between the parts of a JSON document. none: no white space. flexible: one space, or one or two line ends
// with up to 40 spaces and tabs. The bound prevents answers that consist of white space only.
enum class JsonSpace : uint8_t { flexible, none };

struct SchemaOptions {
    JsonSpace space = JsonSpace::flexible;
    // True: objects without "additionalProperties" accept unlisted properties, as JSON Schema defines. False: an object
    // that lists "properties" accepts only those, "required" ones and matches of "patternProperties".
    bool open_objects = true;
};
// Options for schemas of requests: like xgrammar, llama.cpp and OpenAI, with or without "strict".
inline constexpr SchemaOptions answer_schema{.open_objects = false};

// Encodes an object as members between tags in the order of the schema: `name_begin` NAME `name_end` VALUE `value_end`.
// A reader takes a text value literally. Any other value is JSON, or a string if it is not valid JSON. The first of
// several members with one name counts.
struct TaggedObject {
    std::string name_begin, name_end, value_end;
    std::vector<std::string> closing;               // each ends a value unless it occurs inside a JSON string
    std::map<std::string, bool, std::less<>> text;  // by name: whether the value is literal text
    bool others_are_texts = true;                   // for names that `text` does not list

    bool is_text(std::string_view name) const {
        const auto found = text.find(name);
        return found == text.end() ? others_are_texts : found->second;
    }
};

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
    // Whether the grammar accepts the whole `text`.
    bool matches(std::string_view text) const;

private:
    Grammar(std::unique_ptr<const PushdownAutomaton> automaton, const GrammarLimits& limits);
    std::shared_ptr<const PushdownAutomaton> automaton_;
    GrammarLimits limits_;
};

}  // namespace nibble
