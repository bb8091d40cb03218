// Deterministic automata over bytes and calls of rules, built from expressions. Regular languages (automata without
// calls) support intersection and difference.
#pragma once

#include "base/error.h"
#include "grammar/expression.h"
#include "grammar/limits.h"

#include <cstdint>
#include <string_view>
#include <vector>

namespace nibble {

// Counts the states and work of compiling one grammar against its limits.
class GrammarBudget {
public:
    explicit GrammarBudget(const GrammarLimits& limits) : limits(limits) {}

    // Error: the limit that is exceeded, by name.
    Status pay_states(size_t n);
    Status pay_work(size_t n);

    const GrammarLimits limits;

private:
    size_t states_ = 0, work_ = 0;
};

struct Nfa;

class Dfa {
public:
    struct Edge {
        uint8_t first = 0, last = 0;
        uint32_t to = 0;
    };
    struct Call {
        uint32_t rule = 0, to = 0;
    };
    struct State {
        std::vector<Edge> edges;  // sorted, disjoint
        std::vector<Call> calls;  // by rule
        bool accepts = false;
    };

    // Builds the automaton. It keeps only states from which an accepting end can be reached, assuming that every call
    // returns. The empty language has no states.
    static Result<Dfa> of(const GrammarExpression& expression, GrammarBudget& budget);
    static Result<Dfa> of(const Nfa& nfa, GrammarBudget& budget);

    // Intersection and difference. Precondition: no calls.
    static Result<Dfa> both(const Dfa& a, const Dfa& b, GrammarBudget& budget);
    static Result<Dfa> minus(const Dfa& a, const Dfa& b, GrammarBudget& budget);
    bool matches(std::string_view bytes) const;

    bool empty() const { return states_.empty(); }
    const std::vector<State>& states() const { return states_; }  // [0] is the start

private:
    friend class Determinizer;
    static Result<Dfa> product(const Dfa& a, const Dfa& b, bool keep_both, GrammarBudget& budget);
    void trim();
    std::vector<State> states_;
};

// Returns for each state whether an accepting end can be reached. `passable` marks the rules whose calls return (null:
// all).
std::vector<bool> reach_an_end(const std::vector<Dfa::State>& states, const std::vector<bool>* passable = nullptr);

}  // namespace nibble
