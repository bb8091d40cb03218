// Expressions from which grammars are built before they become automata. They describe byte texts by characters,
// sequences, alternatives, repetitions and calls of named rules. Expressions are immutable and share their parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble {

class Dfa;
struct GrammarExpression;
using ExprPtr = std::shared_ptr<const GrammarExpression>;

// A set of code points, as sorted, disjoint, non-adjacent ranges.
class CodeSet {
public:
    CodeSet() = default;
    CodeSet(std::initializer_list<std::pair<char32_t, char32_t>> ranges);
    static CodeSet all();  // all code points except surrogates

    void add(char32_t first, char32_t last);
    CodeSet inverse() const;
    CodeSet both(const CodeSet& other) const;
    bool has(char32_t code) const;
    bool empty() const { return ranges_.empty(); }
    const std::vector<std::pair<char32_t, char32_t>>& ranges() const { return ranges_; }

private:
    std::vector<std::pair<char32_t, char32_t>> ranges_;
};

// Spelling of characters: plain, or as in a JSON string, where quotes, backslashes and control characters are escaped
// in one canonical form ("\n" is \n, U+0001 is \u0001).
enum class Spelling : uint8_t { plain, json };

struct GrammarExpression {
    enum class Kind : uint8_t { text, set, sequence, choice, repeat, rule, automaton, graph };
    struct Arc {
        uint32_t from = 0, to = 0;
        ExprPtr item;
    };
    Kind kind = Kind::text;
    std::string text;                     // bytes
    CodeSet set;                          // matches one character in UTF-8
    Spelling spelling = Spelling::plain;  // used by set
    std::vector<ExprPtr> items;           // sequence, choice (empty: never matches) or the repeated item
    size_t least = 0, most = 0;           // used by repeat; most == unlimited: no bound
    uint32_t rule = 0;
    std::shared_ptr<const Dfa> automaton;
    uint32_t nodes = 0;  // used by graph: matches every path of arcs from node 0 to node 1
    std::vector<Arc> arcs;

    static constexpr size_t unlimited = SIZE_MAX;
};

namespace expression {

ExprPtr text(std::string bytes);
// Matches the characters of `utf8` in the given spelling.
ExprPtr characters(std::string_view utf8, Spelling spelling);
ExprPtr set(CodeSet codes, Spelling spelling = Spelling::plain);
ExprPtr sequence(std::vector<ExprPtr> items);
ExprPtr choice(std::vector<ExprPtr> items);
ExprPtr repeat(ExprPtr item, size_t least, size_t most = GrammarExpression::unlimited);
ExprPtr optional(ExprPtr item);
ExprPtr rule(uint32_t index);
ExprPtr automaton(Dfa dfa);
ExprPtr graph(uint32_t nodes, std::vector<GrammarExpression::Arc> arcs);

// Marks of the beginning and end of a text: bytes that never occur in UTF-8. Building an automaton from another one
// skips them.
constexpr char begin_mark = '\xF8', end_mark = '\xF9';

// Returns the byte text of a control token. It begins with a byte that UTF-8 never has, so text of other tokens is
// never mistaken for a control token.
std::string control_text(std::string_view token);

}  // namespace expression

}  // namespace nibble
