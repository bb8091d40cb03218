// Grammars whose rules can begin with a call of themselves, at once, through other rules or after rules that matched
// nothing, become grammars of the same texts without such calls.
#pragma once

#include "grammar/dfa.h"

#include <vector>

namespace nibble {

// Rewrites rules[i], the automaton of rule i, where the grammar is left-recursive; else changes nothing. The texts of
// rules[0] stay the same. Other rules may lose the empty text, and a rule may be added at the end. Returns whether
// something changed. Error: a limit of the budget.
Result<bool> remove_left_recursion(std::vector<std::vector<Dfa::State>>& rules, GrammarBudget& budget);

// For each rule whether it matches the empty text.
Result<std::vector<bool>> nullable_rules(const std::vector<std::vector<Dfa::State>>& rules, GrammarBudget& budget);

// The states that `state` of a rule becomes without a byte, by calls of nullable rules; itself first.
Result<std::vector<uint32_t>> states_without_bytes(const std::vector<Dfa::State>& rule, uint32_t state,
                                                   const std::vector<bool>& nullable, GrammarBudget& budget);

}  // namespace nibble
