// Parses grammars in EBNF: llama.cpp's GBNF and the part of Lark that vLLM's users know.
//
// GBNF:  root ::= "a" [b-z]* (rule-1 | "x"){2,3} . # comment     the start is "root"
// Lark:  start: "a" /[b-z]*/ (rule_1 | TERM)~2..3 // comment     the start is "start"
//        also "a".."z", "text"i and the terminals of "%import common.NUMBER" (INT, WORD, WS, ESCAPED_STRING ...).
//        %ignore is an error. From llguidance's dialect ("%llguidance {}" at the beginning): %json {schema}, <|token|>,
//        rule[capture="x"]. Rule attributes that change sampling (max_tokens, temperature, stop, suffix, lazy), %lark,
//        %regex and tokens by number are errors that name them.
//
// Rules may be left-recursive, directly or through others (grammar/left_recursion.h).
#pragma once

#include "base/error.h"
#include "grammar/dfa.h"
#include "grammar/expression.h"

#include <string>
#include <string_view>
#include <vector>

namespace nibble {

// Appends rules and their names; rules[0] is the start. Errors name the line: "line 3: ...".
Status parse_ebnf(std::string_view text, GrammarBudget& budget, std::vector<ExprPtr>& rules,
                  std::vector<std::string>& names);

}  // namespace nibble
