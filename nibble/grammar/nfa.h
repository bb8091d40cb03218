// Expressions as nondeterministic automata (Thompson's construction), the step before determinization.
#pragma once

#include "grammar/dfa.h"

#include <cstdint>
#include <vector>

namespace nibble {

struct Nfa {
    struct Edge {
        uint32_t from = 0;
        uint8_t first = 0, last = 0;
        uint32_t to = 0;
    };
    struct Jump {
        uint32_t from = 0, to = 0;
    };
    struct Call {
        uint32_t from = 0, rule = 0, to = 0;
    };

    uint32_t states = 0, start = 0, end = 0;
    std::vector<Edge> edges;  // all three lists are sorted by `from`
    std::vector<Jump> jumps;
    std::vector<Call> calls;

    // Errors: more than limits.max_parts states, nesting beyond limits.max_depth * 8.
    static Result<Nfa> of(const GrammarExpression& expression, GrammarBudget& budget);
};

}  // namespace nibble
