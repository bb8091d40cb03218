// Regular expressions as grammar expressions: the part that ECMAScript, Python and PCRE share and a finite automaton
// can follow.
//
// Taken: characters, '.', classes [a-z] [^a-z], \d \w \s and their negations, \p{L} and other general categories, the
// escapes \n \r \t \f \v \a \0 \xHH \uHHHH \u{H} \cX, groups ( ) (?: ) (?<name> ) and (?s: ), alternatives, the
// quantifiers
// * + ? {n} {n,} {n,m} (also lazy: greed changes which match is found, not which texts match), the anchors ^ $ \A \z \Z
// anywhere. Refused by name: back-references, look-around, \b and \B, flags, atomic groups and possessive quantifiers.
#pragma once

#include "base/error.h"
#include "grammar/dfa.h"
#include "grammar/expression.h"

#include <string_view>

namespace nibble {

struct RegexOptions {
    Spelling spelling = Spelling::plain;  // of the texts that match
    bool search = false;                  // a text matches where a part of it does; else the whole text has to
};

// Errors name the character, counted from 1: "character 7: look-ahead is not supported".
Result<ExprPtr> parse_regex(std::string_view pattern, const RegexOptions& options, GrammarBudget& budget);

}  // namespace nibble
