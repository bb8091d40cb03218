// A grammar in EBNF as a part of a larger one, as it is or inside of a JSON string.
#pragma once

#include "base/error.h"
#include "grammar/dfa.h"
#include "grammar/expression.h"

#include <string>
#include <string_view>
#include <vector>

namespace nibble {

// Adds the rules of the grammar to `rules` and `names`, with their characters in `spelling`. Returns a call of its
// start. Error: what parse_ebnf() finds wrong; in a JSON string, a regular expression with conditions on what stands
// around it.
Result<ExprPtr> ebnf_rule(std::string_view text, Spelling spelling, GrammarBudget& budget, std::vector<ExprPtr>& rules,
                          std::vector<std::string>& names);

}  // namespace nibble
