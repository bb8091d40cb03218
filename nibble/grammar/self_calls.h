// Calls of a rule by itself after which nothing new can follow: in e: NUMBER ("+" e)*, what may follow the inner e in
// the outer one may follow at the end of the inner one as well. Such a call needs no stack entry, so that a chain of
// them needs no stack.
#pragma once

#include "grammar/dfa.h"

#include <optional>
#include <vector>

namespace nibble {

class SelfCalls {
public:
    // `rule` is rule number `index`, and outlives this.
    SelfCalls(const std::vector<Dfa::State>& rule, uint32_t index);

    // Whether the call may end its caller: the caller may end where the call returns to, and all that can follow there
    // can follow every end of the rule.
    bool repeats_end(const Dfa::Call& call) const;

private:
    bool simulates(uint32_t a, uint32_t b) const { return covers_[a * rule_.size() + b]; }
    bool still_simulates(uint32_t a, uint32_t b) const;

    const std::vector<Dfa::State>& rule_;
    uint32_t index_;
    std::vector<bool> covers_;  // [a, b]: what follows b can follow a; empty: not computed
};

}  // namespace nibble
