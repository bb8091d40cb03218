// Removes left recursion: rules that can begin with a call of themselves, directly, through other rules or after rules
// that matched the empty text. The language stays the same.
#pragma once

#include "grammar/dfa.h"

#include <vector>

namespace nibble {

// Rewrites `rules` (rules[i] is the automaton of rule i) if the grammar is left-recursive; otherwise changes nothing.
// The language of rules[0] stays the same. Other rules may lose the empty text, and a rule may be appended. Returns
// whether something changed. Error: a limit of the budget.
Result<bool> remove_left_recursion(std::vector<std::vector<Dfa::State>>& rules, GrammarBudget& budget);

// Returns for each rule whether it matches the empty text.
Result<std::vector<bool>> nullable_rules(const std::vector<std::vector<Dfa::State>>& rules, GrammarBudget& budget);

// Returns the states that `state` can reach without a byte, through calls of nullable rules; `state` is first.
Result<std::vector<uint32_t>> states_without_bytes(const std::vector<Dfa::State>& rule, uint32_t state,
                                                   const std::vector<bool>& nullable, GrammarBudget& budget);

}  // namespace nibble
