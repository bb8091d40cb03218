// Regular expressions in the dialect of Python's module `re` (str patterns of Python 3.11), run by PCRE2. Lists of
// modules in checkpoints ("re:.*self_attn.*") use this dialect.
//
// The meaning is Python's: \Z is the end, \v the vertical tab, unknown escapes and flags after the beginning are
// errors, lookbehind has a fixed width. Errors by name, because PCRE2 has no equivalent: \N{...}, flag L, flags a and i
// together, lone surrogates, repeats above 65,535.
#pragma once

#include "base/error.h"

#include <memory>
#include <string_view>

namespace nibble {

class PythonRegex {
public:
    // Errors: a pattern that Python rejects too, or one of the above.
    static Result<PythonRegex> compile(std::string_view pattern);

    // re.match: whether a match begins at the start of the text. Error: the pattern needs more steps than its limit.
    Result<bool> match(std::string_view text) const;

private:
    struct Compiled;
    std::shared_ptr<const Compiled> compiled_;
};

}  // namespace nibble
