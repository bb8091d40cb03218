// Finds calls of a rule by itself that need no stack entry. In e: NUMBER ("+" e)*, everything that may follow the inner
// e in the outer one may also follow at the end of the inner one. A chain of such calls then needs no stack.
#pragma once

#include "grammar/dfa.h"

#include <optional>
#include <vector>

namespace nibble {

class SelfCalls {
public:
    // `rule` is the automaton of rule `index` and outlives this object.
    SelfCalls(const std::vector<Dfa::State>& rule, uint32_t index);

    // Returns true if the call can also be the end of its caller: the caller may end at the return state, and
    // everything that can follow there can follow every end of the rule.
    bool repeats_end(const Dfa::Call& call) const;

private:
    bool simulates(uint32_t a, uint32_t b) const { return covers_[a * rule_.size() + b]; }
    bool still_simulates(uint32_t a, uint32_t b) const;

    const std::vector<Dfa::State>& rule_;
    uint32_t index_;
    std::vector<bool> covers_;  // [a, b]: what follows b can follow a; empty: not computed
};

}  // namespace nibble
