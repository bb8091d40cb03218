// Grammars in EBNF as rules: GBNF as llama.cpp writes it, and the part of Lark that vLLM's users know.
//
// GBNF:  root ::= "a" [b-z]* (rule-1 | "x"){2,3} . # comment     the start is "root"
// Lark:  start: "a" /[b-z]*/ (rule_1 | TERM)~2..3 // comment     the start is "start"; "a".."z"; "text"i; and the
//        terminals of "%import common.NUMBER" (INT, WORD, WS, ESCAPED_STRING ...). %ignore is an error. Of llguidance's
//        dialect, as guidance writes it ("%llguidance {}" in front): %json {schema}, <|token|>, rule[capture="x"]. Rule
//        attributes that change what is sampled (max_tokens, temperature, stop, suffix, lazy), %lark, %regex and tokens
//        by number are errors that name them.
//
// Rules may begin with themselves, at once or through others (grammar/left_recursion.h).
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
