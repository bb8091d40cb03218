// What grammars are written in before they become automata: texts over bytes, built from characters, sequences,
// alternatives, repetitions and calls of named rules. Expressions are immutable and share their parts.
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

// A set of code points as sorted, disjoint ranges that do not touch.
class CodeSet {
public:
    CodeSet() = default;
    CodeSet(std::initializer_list<std::pair<char32_t, char32_t>> ranges);
    static CodeSet all();  // every code point but the surrogates

    void add(char32_t first, char32_t last);
    CodeSet inverse() const;
    CodeSet both(const CodeSet& other) const;
    bool has(char32_t code) const;
    bool empty() const { return ranges_.empty(); }
    const std::vector<std::pair<char32_t, char32_t>>& ranges() const { return ranges_; }

private:
    std::vector<std::pair<char32_t, char32_t>> ranges_;
};

// How characters are spelled: as they are, or as in a JSON string, where a quote, a backslash and control characters
// are escaped in one canonical way ("\n" is \n, U+0001 is \u0001).
enum class Spelling : uint8_t { plain, json };

struct GrammarExpression {
    enum class Kind : uint8_t { text, set, sequence, choice, repeat, rule, automaton, graph };
    struct Arc {
        uint32_t from = 0, to = 0;
        ExprPtr item;
    };
    Kind kind = Kind::text;
    std::string text;                     // bytes
    CodeSet set;                          // one character in UTF-8
    Spelling spelling = Spelling::plain;  // of a set
    std::vector<ExprPtr> items;           // of a sequence or choice (none: never matches); the repeated one
    size_t least = 0, most = 0;           // repeat; most == unlimited: no bound
    uint32_t rule = 0;
    std::shared_ptr<const Dfa> automaton;
    uint32_t nodes = 0;  // of a graph: every path of arcs from node 0 to node 1
    std::vector<Arc> arcs;

    static constexpr size_t unlimited = SIZE_MAX;
};

namespace expression {

ExprPtr text(std::string bytes);
// The characters of `utf8` in their spelling.
ExprPtr characters(std::string_view utf8, Spelling spelling);
ExprPtr set(CodeSet codes, Spelling spelling = Spelling::plain);
ExprPtr sequence(std::vector<ExprPtr> items);
ExprPtr choice(std::vector<ExprPtr> items);
ExprPtr repeat(ExprPtr item, size_t least, size_t most = GrammarExpression::unlimited);
ExprPtr optional(ExprPtr item);
ExprPtr rule(uint32_t index);
ExprPtr automaton(Dfa dfa);
ExprPtr graph(uint32_t nodes, std::vector<GrammarExpression::Arc> arcs);

// Bytes that UTF-8 never has and that are no part of a text: an automaton that is made of another one jumps over them.
constexpr char begin_mark = '\xF8', end_mark = '\xF9';

// A control token of a vocabulary, by its text. A byte that UTF-8 never has stands in front, so that no text of other
// tokens is ever taken for a control token.
std::string control_text(std::string_view token);

}  // namespace expression

}  // namespace nibble
