// Deterministic automata over bytes and calls of rules, made from expressions, and the regular languages among them as
// sets: intersection and difference.
#pragma once

#include "base/error.h"
#include "grammar/expression.h"
#include "grammar/limits.h"

#include <cstdint>
#include <string_view>
#include <vector>

namespace nibble {

// What compiling has used of its limits; one for a grammar.
class GrammarBudget {
public:
    explicit GrammarBudget(const GrammarLimits& limits) : limits(limits) {}

    // Errors: the limit, by name.
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

    // Only states from which an end can be reached, where calls count as passable. Nothing at all: no states.
    static Result<Dfa> of(const GrammarExpression& expression, GrammarBudget& budget);
    static Result<Dfa> of(const Nfa& nfa, GrammarBudget& budget);

    // Preconditions: no calls.
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

// For each state whether an end can be reached from it; passable: rules whose calls come back (null: all).
std::vector<bool> reach_an_end(const std::vector<Dfa::State>& states, const std::vector<bool>* passable = nullptr);

}  // namespace nibble
