// Grammars in EBNF as rules: GBNF as llama.cpp writes it, and the part of Lark that vLLM's users know.
//
// GBNF:  root ::= "a" [b-z]* (rule-1 | "x"){2,3} . # comment     the start is "root"
// Lark:  start: "a" /[b-z]*/ (rule_1 | TERM)~2..3 // comment     the start is "start"; "a".."z"; "text"i; and the
//        terminals of "%import common.NUMBER" (INT, WORD, WS, ESCAPED_STRING ...). %ignore is an error.
//
// A rule that begins with itself is written as a repetition where it is direct; other left recursion is an error.
#pragma once

#include "base/error.h"
#include "grammar/dfa.h"
#include "grammar/expression.h"

#include <string>
#include <string_view>
#include <vector>

namespace nibble {

// rules[0] is the start. Errors name the line: "line 3: ...".
Status parse_ebnf(std::string_view text, GrammarBudget& budget, std::vector<ExprPtr>& rules,
                  std::vector<std::string>& names);

}  // namespace nibble
