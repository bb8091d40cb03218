// Embeds an EBNF grammar in a larger one, as plain text or inside a JSON string.
#pragma once

#include "base/error.h"
#include "grammar/dfa.h"
#include "grammar/expression.h"

#include <string>
#include <string_view>
#include <vector>

namespace nibble {

// Adds the rules of the grammar to `rules` and `names`, with characters in `spelling`. Returns a call of the start
// rule. Errors: those of parse_ebnf(); inside a JSON string, a regular expression with look-around conditions.
Result<ExprPtr> ebnf_rule(std::string_view text, Spelling spelling, GrammarBudget& budget, std::vector<ExprPtr>& rules,
                          std::vector<std::string>& names);

}  // namespace nibble
