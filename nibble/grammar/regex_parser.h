// Parses regular expressions: the subset shared by ECMAScript, Python and PCRE that a finite automaton can match.
//
// Supported: characters, '.', classes [a-z] [^a-z], \d \w \s and their negations, \p{L} and other general categories,
// the escapes \n \r \t \f \v \a \0 \xHH \uHHHH \u{H} \cX, groups ( ) (?: ) (?<name> ) and (?s: ), alternatives, the
// quantifiers * + ? {n} {n,} {n,m} (lazy ones too: greediness changes which match is found, not which texts match), and
// the anchors ^ $ \A \z \Z anywhere. Rejected by name: back-references, look-around, \b and \B, flags, atomic groups
// and possessive quantifiers.
#pragma once

#include "base/error.h"
#include "grammar/dfa.h"
#include "grammar/expression.h"

#include <string_view>

namespace nibble {

struct RegexOptions {
    Spelling spelling = Spelling::plain;  // spelling of matching texts
    bool search = false;  // true: a match anywhere in the text suffices; false: the whole text must match
};

// Errors name the character, counted from 1: "character 7: look-ahead is not supported".
Result<ExprPtr> parse_regex(std::string_view pattern, const RegexOptions& options, GrammarBudget& budget);

}  // namespace nibble
