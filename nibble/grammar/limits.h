// What one grammar may cost. A schema, an expression or a grammar comes from a request and is untrusted: every limit is
// an error that names the limit, never a wait.
#pragma once

#include <cstddef>

namespace nibble {

struct GrammarLimits {
    size_t max_source_bytes = 256 << 10;
    int max_depth = 64;            // of nested schemas, groups and brackets
    size_t max_rules = 20'000;     // named parts: objects, arrays, definitions
    size_t max_parts = 400'000;    // states before and while an automaton is made deterministic
    size_t max_states = 150'000;   // of all automata together
    size_t max_work = 20'000'000;  // elementary steps of making them
    int max_stack = 256;           // rules that an answer may nest
    size_t max_live = 1024;        // states that readings of an answer are in at a time
};

}  // namespace nibble
