// Regular expressions in the dialect of Python's module `re` (str patterns of Python 3.11), which PCRE2 runs: lists of
// modules in checkpoints ("re:.*self_attn.*") are written for it.
//
// The meaning is Python's, character for character: \Z is the end, \v the vertical tab, unknown escapes and flags after
// the beginning are errors, look-behind has a fixed width. Refused by name, because PCRE2 has no equal: \N{...}, flag
// L, flags a and i together, lone surrogates, repeats above 65,535.
#pragma once

#include "base/error.h"

#include <memory>
#include <string_view>

namespace nibble {

class PythonRegex {
public:
    // Errors: a pattern that Python refuses, too, or one of the above.
    static Result<PythonRegex> compile(std::string_view pattern);

    // re.match: whether a match begins at the start of the text. Error: the pattern needs more steps than are given to
    // it.
    Result<bool> match(std::string_view text) const;

private:
    struct Compiled;
    std::shared_ptr<const Compiled> compiled_;
};

}  // namespace nibble
