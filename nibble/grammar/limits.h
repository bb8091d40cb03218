// Limits on the cost of one grammar. Schemas, expressions and grammars come from requests and are untrusted: exceeding
// a limit is an error that names the limit.
#pragma once

#include <cstddef>

namespace nibble {

struct GrammarLimits {
    size_t max_source_bytes = 256 << 10;
    int max_depth = 64;            // nested schemas, groups and brackets
    size_t max_rules = 20'000;     // named parts: objects, arrays, definitions
    size_t max_parts = 400'000;    // states before and during determinization
    size_t max_states = 150'000;   // total over all automata
    size_t max_work = 20'000'000;  // elementary steps of compilation
    int max_stack = 256;           // nesting of rules in an answer
    size_t max_live = 1024;        // states of simultaneous readings of an answer
};

}  // namespace nibble
